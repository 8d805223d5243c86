"""Generated from proto/paceline/v1 by scripts/gen_protos.py; do not edit."""
