// SPDX-License-Identifier: Apache-2.0
#include "tests/emulators/ascend/state.h"

int emu::tier() { return EMU_TIER; }
