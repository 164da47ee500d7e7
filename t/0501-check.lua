-- Every case of t/cases/decode.csv against the float64 reference.
-- SPDX-License-Identifier: Apache-2.0
local tap = require "tap"

local command = ("'%s' check --tap --device %s '%s/t/cases/decode.csv'"):format(
    os.getenv "QUIRE_COMMAND", tap.device(), os.getenv "QUIRE_SOURCE")
os.exit(os.execute(command) == 0 and 0 or 1)
