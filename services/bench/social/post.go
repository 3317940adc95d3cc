// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package social

import (
	"encoding/binary"
	"hash/crc32"
	"strconv"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
)

// TimelinePosts is the length of a timeline: a ring of this many keys for each
// user. A new post takes the place of the oldest.
const TimelinePosts = 10

// Keys of a timeline are {uNAME}t/0 to {uNAME}t/9.
const (
	ringPrefix = "t/"
	ringEnd    = "t0" // the first text after all with ringPrefix
)

func vertexTag(name uint64) []byte {
	tag := make([]byte, 0, 16)
	tag = append(tag, '{', 'u')
	tag = strconv.AppendUint(tag, name, 10)
	return append(tag, '}')
}

func ringKey(name uint64, place int) []byte {
	return strconv.AppendInt(append(vertexTag(name), ringPrefix...), int64(place), 10)
}

// placeOf returns the ring's place that a key names, -1 if it names none.
func placeOf(key []byte) int {
	last := int(key[len(key)-1]) - '0'
	if last < 0 || last >= TimelinePosts {
		return -1
	}
	return last
}

func readCommand(name uint64) *kvv1.Command {
	tag := vertexTag(name)
	return &kvv1.Command{
		Keys: [][]byte{append(tag[:len(tag):len(tag)], ringPrefix...)},
		ThenOps: []*kvv1.Op{{
			Kind:  kvv1.OpKind_OP_KIND_SCAN_VERTEX,
			End:   append(tag[:len(tag):len(tag)], ringEnd...),
			Limit: TimelinePosts,
		}},
	}
}

// postBytes is the size of a post in a timeline.
const postBytes = 120

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodePost writes a post: its number, its poster, text that follows from
// both, and a CRC-32C of all before it.
func encodePost(number uint64, poster uint32) []byte {
	value := make([]byte, 0, postBytes)
	value = binary.BigEndian.AppendUint64(value, number)
	value = binary.BigEndian.AppendUint32(value, poster)
	state := number*0x9e3779b97f4a7c15 + uint64(poster)
	for len(value) < postBytes-crc32.Size {
		state = state*6364136223846793005 + 1442695040888963407
		value = append(value, 'a'+byte(state>>33%26))
	}
	return binary.BigEndian.AppendUint32(value, crc32.Checksum(value, castagnoli))
}

// decodePost returns the number and poster of a post; false if it is damaged.
func decodePost(value []byte) (number uint64, poster uint32, ok bool) {
	if len(value) != postBytes {
		return 0, 0, false
	}
	body := value[:postBytes-crc32.Size]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(value[len(body):]) {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(value), binary.BigEndian.Uint32(value[8:]), true
}
