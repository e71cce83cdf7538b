"""The rules are imported as the pack itself imports them: from its own folder, which is no package of ours."""

import sys
from pathlib import Path

PACK = Path(__file__).resolve().parents[2] / "policies"
if str(PACK) not in sys.path:
    sys.path.insert(0, str(PACK))
