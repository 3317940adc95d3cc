// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/kolocate/kolocate/services/replica/snapshot"
	"github.com/kolocate/kolocate/services/replica/wal"
)

// logStorage is what Raft reads its log from: the entries above the oldest kept index, in memory. The
// same entries are in the WAL, which is read only when the replica is opened.
type logStorage struct {
	*raft.MemoryStorage
	// conf is the membership at the time of opening.
	conf *raftpb.ConfState
	// newest is the mark of the snapshot that followers are sent.
	newest wal.Mark
}

// newLogStorage loads what the WAL held, from the oldest mark on.
func newLogStorage(c *wal.Contents, state *raftpb.HardState, from wal.Mark) (*logStorage, error) {
	s := &logStorage{MemoryStorage: raft.NewMemoryStorage(), conf: from.ConfState, newest: from}
	if base := c.Marks[0]; base.Index > 0 {
		if err := s.ApplySnapshot(markSnapshot(base)); err != nil {
			return nil, fmt.Errorf("load the log from its snapshot of %d: %w", base.Index, err)
		}
	}
	if err := s.Append(c.Entries); err != nil {
		return nil, fmt.Errorf("load %d entries of the log: %w", len(c.Entries), err)
	}
	if err := s.SetHardState(state); err != nil {
		return nil, fmt.Errorf("load the state of the log: %w", err)
	}
	return s, nil
}

// InitialState implements raft.Storage.
func (s *logStorage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	state, _, err := s.MemoryStorage.InitialState()
	return state, s.conf, err //nolint:wrapcheck // an interface of the library
}

// Snapshot implements raft.Storage: the position of the newest snapshot, whose file the transport streams.
func (s *logStorage) Snapshot() (*raftpb.Snapshot, error) {
	if s.newest.Index == 0 {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return markSnapshot(s.newest), nil
}

// markSnapshot is the mark as Raft's type, without data.
func markSnapshot(m wal.Mark) *raftpb.Snapshot {
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		Index: new(m.Index), Term: new(m.Term), ConfState: proto.Clone(m.ConfState).(*raftpb.ConfState), //nolint:forcetypeassert,errcheck // a clone
	}}
}

// positionOf names the snapshot of a mark.
func positionOf(m wal.Mark) snapshot.Position { return snapshot.Position{Index: m.Index, Term: m.Term} }

// metadataPosition names the snapshot of a Raft message.
func metadataPosition(m *raftpb.SnapshotMetadata) snapshot.Position {
	return snapshot.Position{Index: m.GetIndex(), Term: m.GetTerm()}
}

// compact drops the entries below the snapshot but for about keep bytes, for followers that lag a little.
func (s *logStorage) compact(snapshotIndex uint64, keep int64) error {
	first, err := s.FirstIndex()
	if err != nil {
		return err //nolint:wrapcheck // never fails
	}
	if snapshotIndex < first {
		return nil
	}
	entries, err := s.Entries(first, snapshotIndex+1, 1<<62)
	if err != nil {
		return fmt.Errorf("read the log from %d to %d: %w", first, snapshotIndex, err)
	}
	cut := len(entries)
	for cut > 0 && keep >= int64(len(entries[cut-1].GetData())) {
		cut--
		keep -= int64(len(entries[cut].GetData())) + entryOverhead
	}
	if cut == 0 {
		return nil
	}
	if err := s.Compact(entries[cut-1].GetIndex()); err != nil {
		return fmt.Errorf("cut the log in memory below %d: %w", entries[cut-1].GetIndex(), err)
	}
	return nil
}

// entryOverhead is about what an entry takes in memory beside its data, in bytes.
const entryOverhead = 128
