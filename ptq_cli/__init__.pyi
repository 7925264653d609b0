from .api.evaluations import evaluate as evaluate
from .api.evaluations import evaluate_shard as evaluate_shard
from .api.evaluations import merge_evaluation as merge_evaluation
from .api.evaluations import tune as tune
from .api.proofs import bench as bench
from .api.proofs import compare_answers as compare_answers
from .api.proofs import pack_cases as pack_cases
from .api.proofs import rederive as rederive
from .api.proofs import verify as verify
from .api.stages import calibrate as calibrate
from .api.stages import export as export
from .api.stages import merge as merge
from .api.stages import prepare as prepare
from .api.stages import quantize as quantize
from .api.stages import quantize_folder as quantize_folder
from .api.views import analyze as analyze
from .api.views import compare as compare
from .api.views import compare_models as compare_models
from .api.views import drift as drift
from .api.views import explain as explain
from .api.views import inspect as inspect
from .api.views import model_card as model_card
from .api.views import report_page as report_page
from .api.views import show_calibration as show_calibration
from .core.errors import PtqError as PtqError
from .core.trust import trust_code as trust_code

__version__: str
