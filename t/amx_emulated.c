/* amx_emulated.c - kernel_amx with amx_emulated.h's instructions
 * SPDX-License-Identifier: Apache-2.0 */
#include "cpu/kernel_amx.c"
