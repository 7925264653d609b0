from .assign import assignment_probabilities as assignment_probabilities
from .assign import hard_assign as hard_assign
from .assign import quantize_to_centers as quantize_to_centers
from .assign import soft_assign as soft_assign
from .automatic_scale import AutoScale as AutoScale
from .center_indices import CenterIndices as CenterIndices
from .center_indices import CenterQuantizer as CenterQuantizer
from .center_indices import encode_centers as encode_centers
from .center_indices import pack_uint4 as pack_uint4
from .dorefa import DorefaLevels as DorefaLevels
from .dorefa import affine_k_bit_quantize as affine_k_bit_quantize
from .dorefa import clamp_by_linear as clamp_by_linear
from .dorefa import encode_dorefa as encode_dorefa
from .dorefa import k_bit_quantize as k_bit_quantize
from .dorefa import k_bit_quantize_forward as k_bit_quantize_forward
from .fixed_point import FixedPointFormat as FixedPointFormat
from .fixed_point import FixedPointIntegers as FixedPointIntegers
from .fixed_point import fixed_point as fixed_point
from .fixed_point import fixed_point_scale as fixed_point_scale
from .fixed_point import quantize_fixed_point as quantize_fixed_point
from .fixed_point import require_power_of_two as require_power_of_two
from .learning import learn_centers as learn_centers
from .scaled.descriptor import (
    QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL as QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL,
)
from .scaled.descriptor import (
    QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL as QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL,
)
from .scaled.descriptor import (
    QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL as QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL,
)
from .scaled.descriptor import (
    QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL as QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL,
)
from .scaled.descriptor import (
    QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL as QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL,
)
from .scaled.descriptor import (
    QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL as QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL,
)
from .scaled.descriptor import QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW as QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW
from .scaled.descriptor import QUANT_DESC_8BIT_PER_TENSOR as QUANT_DESC_8BIT_PER_TENSOR
from .scaled.descriptor import QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR as QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR
from .scaled.descriptor import QuantDescriptor as QuantDescriptor
from .scaled.descriptor import ScaledQuantDescriptor as ScaledQuantDescriptor
from .scaled.float8_quantize import scaled_e4m3 as scaled_e4m3
from .scaled.scaled_quantize import fake_quantize as fake_quantize
from .scaled.scaled_quantize import fake_quantize_affine as fake_quantize_affine
from .scaled.scaled_quantize import fake_quantize_to as fake_quantize_to
from .scaled.scaled_quantize import learned_fake_quantize as learned_fake_quantize
from .scaled.scaled_quantize import quantize as quantize
from .scaled.scaled_quantize import quantize_to as quantize_to
from .scaled.tensor_quant import fake_affine_tensor_quant as fake_affine_tensor_quant
from .scaled.tensor_quant import fake_tensor_quant as fake_tensor_quant
from .scaled.tensor_quant import tensor_quant as tensor_quant
from .scaled.tensor_quantizer import TensorQuantizer as TensorQuantizer
from .scaled.tensor_quantizer import reduce_amax as reduce_amax
from .step import multi_level_spike_count as multi_level_spike_count
from .step import round_through as round_through
from .step import step_quantize as step_quantize
from .step import step_quantize_forward as step_quantize_forward
from .step import stochastic_round as stochastic_round
from .straight_through import apply_straight_through as apply_straight_through
from .straight_through import ceil as ceil
from .straight_through import clamp as clamp
from .straight_through import clamp_backward as clamp_backward
from .straight_through import floor as floor
from .straight_through import round as round
from .straight_through import round_backward as round_backward
