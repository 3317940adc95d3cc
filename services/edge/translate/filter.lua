-- Maps the key of a thin request to the headers that the route table matches on:
-- x-kolocate-vertex, and x-kolocate-page and x-kolocate-slot for its slot.
-- Mirrors services/keyspace (hash tags and CRC16/XMODEM of the Redis Cluster
-- specification); the tests of services/edge/serve hold the two together.
local bit = require("bit")
local band, bxor, lshift, rshift = bit.band, bit.bxor, bit.lshift, bit.rshift
local byte, char, find, format, gsub, sub = string.byte, string.char, string.find, string.format, string.gsub, string.sub

local SLOTS, PAGE_BITS, MAX_KEY_BYTES = 16384, 7, 1024
local UNARY_TIMEOUT_MILLIS = "30000"

local crc_table = {}
for i = 0, 255 do
  local crc = lshift(i, 8)
  for _ = 1, 8 do
    crc = lshift(crc, 1)
    if band(crc, 0x10000) ~= 0 then crc = bxor(crc, 0x11021) end
  end
  crc_table[i] = crc
end

local function slot_of(vertex)
  local crc = 0
  for i = 1, #vertex do
    crc = bxor(band(lshift(crc, 8), 0xffff), crc_table[bxor(rshift(crc, 8), byte(vertex, i))])
  end
  return band(crc, SLOTS - 1)
end

-- The text between the first { and the first } after it, if any is there.
local function vertex_of(key)
  local open = find(key, "{", 1, true)
  if not open then return key end
  local close = find(key, "}", open + 1, true)
  if not close or close == open + 1 then return key end
  return sub(key, open + 1, close - 1)
end

-- Returns nil where a % is not followed by two hexadecimal digits.
local function decode(text)
  if not find(text, "%", 1, true) then return text end
  local left = gsub(text, "%%%x%x", "")
  if find(left, "%", 1, true) then return nil end
  return (gsub(text, "%%(%x%x)", function(hex) return char(tonumber(hex, 16)) end))
end

-- The one spelling that the route table uses: % and all outside visible ASCII encoded.
local function encode(text)
  return (gsub(text, "[^!-$&-~]", function(c) return format("%%%02X", byte(c)) end))
end

local function reject(handle, text)
  local content_type = handle:headers():get("content-type")
  if content_type and sub(content_type, 1, 16) == "application/grpc" then
    handle:respond({[":status"] = "200", ["content-type"] = "application/grpc", ["grpc-status"] = "3", ["grpc-message"] = (gsub(text, "%%", "%%25"))})
  else
    handle:respond({[":status"] = "400", ["content-type"] = "text/plain"}, text .. "\n")
  end
end

local KV = "/kolocate.kv.v1.KV/"

local function strip(headers)
  local found = false
  for _, name in ipairs({"x-kolocate-vertex", "x-kolocate-page", "x-kolocate-slot"}) do
    if headers:get(name) then
      headers:remove(name)
      found = true
    end
  end
  return found
end

local function place(handle, headers, encoded)
  if headers:getNumValues("x-kolocate-key") > 1 then
    return reject(handle, "x-kolocate-key was sent several times: send it once, or leave it out for a command on several keys")
  end
  local key = decode(encoded)
  if not key then
    return reject(handle, "x-kolocate-key has a % without two hexadecimal digits after it: send % as %25, and bytes outside visible ASCII percent-encoded")
  end
  if #key == 0 or #key > MAX_KEY_BYTES then
    return reject(handle, "x-kolocate-key has " .. #key .. " bytes: a key has 1 to " .. MAX_KEY_BYTES)
  end
  local vertex = vertex_of(key)
  local slot = slot_of(vertex)
  headers:add("x-kolocate-vertex", encode(vertex))
  headers:add("x-kolocate-page", tostring(rshift(slot, PAGE_BITS)))
  headers:add("x-kolocate-slot", tostring(slot))
  return true
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local changed = strip(headers)
  local path = headers:get(":path") or ""
  local shard = headers:get("x-kolocate-shard")
  if shard and not find(shard, "^shard%-[1-9]%d?$") then
    return reject(handle, "x-kolocate-shard names no shard: expected a name such as shard-1 from the placement")
  end
  if sub(path, 1, #KV) == KV then
    local key = headers:get("x-kolocate-key")
    if key and not shard then
      if not place(handle, headers, key) then return end
      changed = true
    end
    -- A stream lives on; a call without a deadline of its own gets one.
    if path ~= KV .. "Execute" and not headers:get("grpc-timeout") then
      headers:replace("x-envoy-upstream-rq-timeout-ms", UNARY_TIMEOUT_MILLIS)
    end
  end
  if changed then handle:clearRouteCache() end
end
