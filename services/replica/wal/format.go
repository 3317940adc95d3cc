// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A segment is preamble, head frame, frames. A frame is
//
//	length    uint32  of the payload, at least 1
//	payload   uint32  its CRC-32C
//	header    uint32  CRC-32C of the two fields above, the segment's sequence and the frame's offset
//	zero      uint32
//	payload, padded with zeros to 8 bytes
//
// all little-endian. Sequence and offset in the checksum keep a frame from being taken for another
// that was misplaced. One frame is what one Append wrote with one Write and one sync: at most the last
// frame of a log can be torn, and what stands before it is acknowledged.
const (
	magic        = "kolowal"
	version      = 1
	preambleSize = 8
	frameHeader  = 16
	frameAlign   = 8
	sectorSize   = 512
	// maxFramePayload bounds the payload of a frame; a larger batch is written as several.
	maxFramePayload = 32 << 20
	// maxPayloadRead refuses a length that no writer can have written: one entry over the bound fills a frame.
	maxPayloadRead = 256 << 20
)

// Kinds of records in a payload: kind byte, uvarint length, body.
const (
	recordHead byte = iota + 1
	recordEntry
	recordState
	recordMark
	recordReset
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errRecord = errors.New("a record does not follow the format")

// head is the first record of a segment: it says whose the segment is and where the one before ends.
type head struct {
	group    string
	replica  uint64
	sequence uint64
	// previousEnd is the valid length of the segment before, in bytes: what follows there was torn and cut.
	previousEnd uint64
}

func appendPreamble(b []byte) []byte {
	return append(append(b, magic...), version)
}

// checkPreamble returns an error that says whether b is no segment or one of another version.
func checkPreamble(b []byte) error {
	if len(b) < preambleSize || string(b[:len(magic)]) != magic {
		return errRecord
	}
	if b[len(magic)] != version {
		return fmt.Errorf("%w: it has version %d, this program reads version %d: run the program that wrote it", ErrVersion, b[len(magic)], version)
	}
	return nil
}

func headerChecksum(header []byte, sequence uint64, offset int64) uint32 {
	var salt [16]byte
	binary.LittleEndian.PutUint64(salt[:], sequence)
	binary.LittleEndian.PutUint64(salt[8:], uint64(offset)) //nolint:gosec // offsets are never negative
	return crc32.Update(crc32.Checksum(header[:8], castagnoli), castagnoli, salt[:])
}

// sealFrame completes the frame that starts at buf[start:] (room for its header, then its payload) and
// will stand at the offset of the segment.
func sealFrame(buf []byte, start int, sequence uint64, offset int64) []byte {
	payload := buf[start+frameHeader:]
	header := buf[start : start+frameHeader]
	binary.LittleEndian.PutUint32(header, uint32(len(payload))) //nolint:gosec // bounded by maxPayloadRead
	binary.LittleEndian.PutUint32(header[4:], crc32.Checksum(payload, castagnoli))
	binary.LittleEndian.PutUint32(header[8:], headerChecksum(header, sequence, offset))
	binary.LittleEndian.PutUint32(header[12:], 0)
	for len(buf[start:])%frameAlign != 0 {
		buf = append(buf, 0)
	}
	return buf
}

// frameAt returns the payload of the frame at the offset of a segment's bytes and the offset behind it;
// ok is false if no intact frame stands there.
func frameAt(data []byte, sequence uint64, offset int64) (payload []byte, next int64, ok bool) {
	if offset < 0 || int64(len(data))-offset < frameHeader {
		return nil, 0, false
	}
	header := data[offset : offset+frameHeader]
	length := int64(binary.LittleEndian.Uint32(header))
	if binary.LittleEndian.Uint32(header[8:]) != headerChecksum(header, sequence, offset) ||
		length == 0 || length > maxPayloadRead || length > int64(len(data))-offset-frameHeader {
		return nil, 0, false
	}
	next = offset + frameSize(length)
	if next > int64(len(data)) {
		return nil, 0, false
	}
	payload = data[offset+frameHeader : offset+frameHeader+length]
	if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(header[4:]) {
		return nil, 0, false
	}
	return payload, next, true
}

// frameSize is the size of a frame with a payload of the length.
func frameSize(length int64) int64 {
	return frameHeader + (length+frameAlign-1)/frameAlign*frameAlign
}

// laterFrame returns the offset of an intact frame behind a broken one at offset, or false.
func laterFrame(data []byte, sequence uint64, offset int64) (int64, bool) {
	for o := offset + frameAlign; o+frameHeader <= int64(len(data)); o += frameAlign {
		if _, _, ok := frameAt(data, sequence, o); ok {
			return o, true
		}
	}
	return 0, false
}

// looksTorn says whether the broken frame at the end of the data can be what a power loss leaves of a
// write that was not synced: shorter than its header says, or with a hole of zeros the size of what
// falls into one disk sector. Otherwise every sector was written and bits changed afterwards.
func looksTorn(data []byte, sequence uint64, offset int64) bool {
	rest := data[offset:]
	if len(rest) < frameHeader ||
		binary.LittleEndian.Uint32(rest[8:]) != headerChecksum(rest[:frameHeader], sequence, offset) {
		return true
	}
	end := offset + frameSize(int64(binary.LittleEndian.Uint32(rest)))
	if end > int64(len(data)) {
		return true
	}
	for from := offset; from < end; {
		to := min(end, (from/sectorSize+1)*sectorSize)
		if allZero(data[from:to]) {
			return true
		}
		from = to
	}
	return false
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

func appendRecord(b []byte, kind byte, body []byte) []byte {
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...)
}

func appendHead(b []byte, h head) []byte {
	var body []byte
	body = binary.AppendUvarint(body, h.replica)
	body = binary.AppendUvarint(body, h.sequence)
	body = binary.AppendUvarint(body, h.previousEnd)
	return appendRecord(b, recordHead, append(body, h.group...))
}

func uvarintSize(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// entrySize is the size of the record of an entry, bounded from above.
func entrySize(e *raftpb.Entry) int { return len(e.GetData()) + 32 }

func appendEntry(b []byte, e *raftpb.Entry) []byte {
	size := uvarintSize(e.GetTerm()) + uvarintSize(e.GetIndex()) + 1 + len(e.GetData())
	b = append(b, recordEntry)
	b = binary.AppendUvarint(b, uint64(size)) //nolint:gosec // a size
	b = binary.AppendUvarint(b, e.GetTerm())
	b = binary.AppendUvarint(b, e.GetIndex())
	b = append(b, byte(e.GetType())) //nolint:gosec // an enum of three values
	return append(b, e.GetData()...)
}

func appendState(b []byte, s *raftpb.HardState) []byte {
	var body [3 * binary.MaxVarintLen64]byte
	out := binary.AppendUvarint(body[:0], s.GetTerm())
	out = binary.AppendUvarint(out, s.GetVote())
	out = binary.AppendUvarint(out, s.GetCommit())
	return appendRecord(b, recordState, out)
}

func appendMark(b []byte, m Mark) ([]byte, error) {
	conf, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.ConfState)
	if err != nil {
		return nil, fmt.Errorf("encode the members of snapshot %d: %w", m.Index, err)
	}
	body := binary.AppendUvarint(nil, m.Index)
	body = binary.AppendUvarint(body, m.Term)
	kind := recordMark
	if m.Reset {
		kind = recordReset
	}
	return appendRecord(b, kind, append(body, conf...)), nil
}

// uvarints takes n unsigned varints off b.
func uvarints(b []byte, n int) (values [3]uint64, rest []byte, err error) {
	for i := range n {
		v, size := binary.Uvarint(b)
		if size <= 0 {
			return values, nil, errRecord
		}
		values[i], b = v, b[size:]
	}
	return values, b, nil
}

// nextRecord takes one record off a payload.
func nextRecord(b []byte) (kind byte, body, rest []byte, err error) {
	if len(b) == 0 {
		return 0, nil, nil, errRecord
	}
	length, n := binary.Uvarint(b[1:])
	if n <= 0 || length > uint64(len(b)-1-n) { //nolint:gosec // Uvarint read n of these bytes
		return 0, nil, nil, errRecord
	}
	body = b[1+n:]
	return b[0], body[:length:length], body[length:], nil
}

func decodeHead(body []byte) (head, error) {
	v, rest, err := uvarints(body, 3)
	return head{replica: v[0], sequence: v[1], previousEnd: v[2], group: string(rest)}, err
}

func decodeEntry(body []byte) (*raftpb.Entry, error) {
	v, rest, err := uvarints(body, 2)
	if err != nil || len(rest) == 0 || v[1] == 0 || rest[0] > byte(raftpb.EntryConfChangeV2) {
		return nil, errRecord
	}
	e := &raftpb.Entry{Term: new(v[0]), Index: new(v[1]), Type: raftpb.EntryType(rest[0]).Enum()}
	if len(rest) > 1 {
		e.Data = rest[1:]
	}
	return e, nil
}

func decodeState(body []byte) (*raftpb.HardState, error) {
	v, rest, err := uvarints(body, 3)
	if err != nil || len(rest) != 0 {
		return nil, errRecord
	}
	return &raftpb.HardState{Term: new(v[0]), Vote: new(v[1]), Commit: new(v[2])}, nil
}

func decodeMark(body []byte, reset bool) (Mark, error) {
	v, rest, err := uvarints(body, 2)
	if err != nil {
		return Mark{}, err
	}
	m := Mark{Index: v[0], Term: v[1], Reset: reset, ConfState: &raftpb.ConfState{}}
	if err := proto.Unmarshal(slices.Clone(rest), m.ConfState); err != nil {
		return Mark{}, fmt.Errorf("%w: %w", errRecord, err)
	}
	return m, nil
}
