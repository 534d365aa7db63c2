import os

# Some virtual machines advertise AMX and trap on its first use, in any bf16 product. Set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
