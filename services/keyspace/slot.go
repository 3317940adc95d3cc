// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package keyspace

import (
	"math/bits"
	"strings"
)

// Vertex is the unit of placement: all keys of a vertex live in one shard.
type Vertex string

// VertexOf returns the vertex of a key: the text between the first { and the
// first } after it if there is any text there, else the whole key (the hash
// tags of the Redis Cluster specification, section "Hash tags").
func VertexOf(key string) Vertex {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return Vertex(key)
	}
	length := strings.IndexByte(key[open+1:], '}')
	if length <= 0 {
		return Vertex(key)
	}
	return Vertex(key[open+1 : open+1+length])
}

// Slots is the number of slots of a store.
const Slots = 16384

// Slot numbers a slot, from 0 to Slots-1.
type Slot uint16

// SlotOf returns the slot of a vertex: CRC16/XMODEM modulo Slots, as in the
// Redis Cluster specification, section "Key distribution model".
func SlotOf(v Vertex) Slot { return Slot(CRC16(string(v)) % Slots) }

var crc16Table = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// CRC16 returns the CRC-16/XMODEM of text: polynomial 0x1021, initial value 0,
// nothing reflected, no final xor. Its check value, of "123456789", is 0x31C3.
func CRC16(text string) uint16 {
	var crc uint16
	for i := range len(text) {
		crc = crc<<8 ^ crc16Table[byte(crc>>8)^text[i]]
	}
	return crc
}

// SlotSet is a set of slots. The zero value is empty. It is a value: an
// assignment copies it.
type SlotSet [Slots / 64]uint64

// Add puts a slot into the set.
func (s *SlotSet) Add(slot Slot) { s[slot/64] |= 1 << (slot % 64) }

// Remove takes a slot out of the set.
func (s *SlotSet) Remove(slot Slot) { s[slot/64] &^= 1 << (slot % 64) }

// Has says whether a slot is in the set.
func (s *SlotSet) Has(slot Slot) bool { return s[slot/64]&(1<<(slot%64)) != 0 }

// Len returns the number of slots in the set.
func (s *SlotSet) Len() int {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// SlotRange is a run of slots, both ends inclusive.
type SlotRange struct {
	First, Last Slot
}

// Ranges returns the set as the shortest ascending list of ranges.
func (s *SlotSet) Ranges() []SlotRange {
	var ranges []SlotRange
	for slot := range Slots {
		if !s.Has(Slot(slot)) {
			continue
		}
		if n := len(ranges); n > 0 && int(ranges[n-1].Last) == slot-1 {
			ranges[n-1].Last = Slot(slot)
		} else {
			ranges = append(ranges, SlotRange{First: Slot(slot), Last: Slot(slot)})
		}
	}
	return ranges
}
