"""Names of the TTS trainer's infrastructure; the loop itself uses ``vaak.engine``."""

from vaak.compat.english_tts.device_type import DeviceType
from vaak.compat.english_tts.mps_grad_scaler import MPSGradScaler

__all__ = ["DeviceType", "MPSGradScaler"]
