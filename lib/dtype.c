/* dtype.c - element types
 * SPDX-License-Identifier: Apache-2.0 */
#include "dtype.h"

#include <stdio.h>

static const struct {
    quire_dtype dtype;
    enum quire_type_code code;
    int bits;
    const char *name;
} types[] = {
    {QUIRE_DTYPE_FP16, QUIRE_CODE_FLOAT, 16, "fp16"},
    {QUIRE_DTYPE_BF16, QUIRE_CODE_BFLOAT, 16, "bf16"},
    {QUIRE_DTYPE_FP8E4M3, QUIRE_CODE_FP8E4M3, 8, "fp8e4m3"},
};
enum { TYPES = sizeof types / sizeof *types };

bool dtype_is(DLDataType type, enum quire_type_code code, int bits)
{
    return type.code == code && type.bits == bits && type.lanes == 1;
}

quire_dtype dtype_from_dlpack(DLDataType type)
{
    for (int i = 0; i < TYPES; i++)
        if (dtype_is(type, types[i].code, types[i].bits))
            return types[i].dtype;
    return QUIRE_DTYPE_DEFAULT;
}

int dtype_bytes(quire_dtype dtype)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == dtype)
            return types[i].bits / 8;
    return 0;
}

const char *dtype_name(quire_dtype dtype)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == dtype)
            return types[i].name;
    return dtype == QUIRE_DTYPE_DEFAULT ? "default" : "unknown";
}

struct dtype_text dtype_text(DLDataType type)
{
    /* DLPack's codes; those of formats that differ in more than their width name it themselves. */
    static const struct {
        uint8_t code;
        bool append_bits;
        const char *name;
    } codes[] = {
        {QUIRE_CODE_INT, true, "int"},  {QUIRE_CODE_UINT, true, "uint"}, {QUIRE_CODE_FLOAT, true, "fp"},
        {QUIRE_CODE_BFLOAT, true, "bf"}, {5, true, "complex"},           {6, false, "bool"},
        {7, false, "fp8e3m4"},          {8, false, "fp8e4m3b11fnuz"},   {10, false, "fp8e4m3"},
        {11, false, "fp8e4m3fnuz"},     {12, false, "fp8e5m2"},         {13, false, "fp8e5m2fnuz"},
        {14, false, "fp8e8m0"},
    };
    char lanes[8] = "";
    struct dtype_text text;

    if (type.lanes != 1)
        snprintf(lanes, sizeof lanes, "x%u", type.lanes);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (codes[i].code != type.code)
            continue;
        if (codes[i].append_bits)
            snprintf(text.s, sizeof text.s, "%s%u%s", codes[i].name, type.bits, lanes);
        else
            snprintf(text.s, sizeof text.s, "%s%s", codes[i].name, lanes);
        return text;
    }
    snprintf(text.s, sizeof text.s, "type(%u, %u bits)%s", type.code, type.bits, lanes);
    return text;
}
