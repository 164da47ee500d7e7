/* quire.h's own DLPack structs are laid out as the real ones, and its own structs have no holes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <quire.h>

#include "layout.h"
#include "tap.h"

int main(void)
{
    static const struct layout own[] = {LAYOUT_ROWS};

    plan(0);
    if (layout_dlpack[0].what == NULL)
        skip("configure found no dlpack/dlpack.h (Debian: libdlpack-dev)");
    for (int i = 0; layout_dlpack[i].what != NULL; i++)
        is_int((long long)layout_dlpack[i].value, (long long)own[i].value, "%s is dlpack.h's", own[i].what);

    /* The default of a field to come is zero bytes, so padding must not stand where one could. */
    quire_decode_args *a = NULL;
    size_t fields = sizeof a->struct_size + 11 * sizeof a->query + 4 * sizeof a->max_seq_len +
                    2 * sizeof a->bmm1_scale + sizeof a->out_dtype + sizeof a->mask_type + sizeof a->kv_layout +
                    sizeof a->metadata_stable;
    is_int((long long)fields, sizeof *a, "quire_decode_args has no holes");
    is_int(4, sizeof a->out_dtype, "an enum takes 4 bytes");
    is_int(11 * 8, sizeof(quire_verdict), "quire_verdict has no holes");
    is_int(3 * 8 + 2 * 4 + 128 + 64 + 256, sizeof(quire_device_info), "quire_device_info has no holes");
    return done();
}
