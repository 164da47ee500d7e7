-- workloads.lua - what quire bench measures without a file: one of each kind, none above 1.1 GB of keys
-- SPDX-License-Identifier: Apache-2.0

return {
    "name,kv_lens,hq,hkv,d,seq_len_q,mask,window_left,dtype",
    -- one request: latency
    "one short,256x1,32,8,128,1,dense,-1,bf16",
    "one of 4k,4096x1,32,8,128,1,dense,-1,bf16",
    "one of 32k,32768x1,32,8,128,1,dense,-1,bf16",
    -- batches of equal lengths
    "64 short,256x64,32,8,128,1,dense,-1,bf16",
    "32 of 1k,1024x32,32,8,128,1,dense,-1,bf16",
    "32 of 8k,8192x32,32,8,128,1,dense,-1,bf16",
    -- and of lengths that differ
    "skewed,512x60 65536x3,32,8,128,1,dense,-1,bf16",
    "mixed,100x16 700x16 1500x16 3000x8 6000x6 16000x2,32,8,128,1,dense,-1,bf16",
    -- heads: few, many to one, one to one
    "one KV head,4096x32,8,1,128,1,dense,-1,bf16",
    "ratio 8,4096x16,64,8,128,1,dense,-1,bf16",
    "ratio 1,4096x4,32,32,128,1,dense,-1,bf16",
    -- several query tokens, and a window
    "4 tokens,8192x8,32,8,128,4,causal,-1,bf16",
    "8 tokens,8192x8,32,8,128,8,causal,-1,bf16",
    "window 511,65536x4,32,8,128,1,causal,511,bf16",
    -- the other types and head sizes
    "fp16,8192x8,32,8,128,1,dense,-1,fp16",
    "fp8,8192x32,32,8,128,1,dense,-1,fp8e4m3",
    "d64,4096x32,32,8,64,1,dense,-1,bf16",
    "d256,4096x16,32,8,256,1,dense,-1,bf16",
}
