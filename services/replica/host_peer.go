// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"io"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/kolocate/kolocate/services/replica/snapshot"
	"github.com/kolocate/kolocate/services/replica/transport"
)

// peerHandler is the host as its transport sees it.
type peerHandler Host

var _ transport.Handler = (*peerHandler)(nil)

// Receive implements transport.Handler. A message for which there is no room is dropped: Raft sends it again.
func (h *peerHandler) Receive(m *raftpb.Message) { h.inbox.message(m) }

// Unreachable implements transport.Handler.
func (h *peerHandler) Unreachable(peer uint64) {
	flag := h.unreachable[peer]
	if flag.Swap(true) {
		return
	}
	h.inbox.control(func(n *Node) error {
		flag.Store(false)
		n.ReportUnreachable(peer)
		return nil
	})
}

// SnapshotSent implements transport.Handler.
func (h *peerHandler) SnapshotSent(peer uint64, ok bool) {
	h.inbox.control(func(n *Node) error {
		n.ReportSnapshot(peer, ok)
		return nil
	})
}

// OpenSnapshot implements transport.Handler.
func (h *peerHandler) OpenSnapshot(m *raftpb.Message) (io.ReadCloser, error) {
	return h.node.SnapshotFile(metadataPosition(m.GetSnapshot().GetMetadata()))
}

// ReceiveSnapshot implements transport.Handler.
func (h *peerHandler) ReceiveSnapshot(m *raftpb.Message) (transport.SnapshotSink, error) {
	receiver, err := h.node.ReceiveSnapshot(metadataPosition(m.GetSnapshot().GetMetadata()))
	if err != nil {
		return nil, err
	}
	return &snapshotSink{Receiver: receiver, host: (*Host)(h), message: m}, nil
}

// snapshotSink is a snapshot that comes in.
type snapshotSink struct {
	*snapshot.Receiver
	host    *Host
	message *raftpb.Message
}

// Commit makes the file durable and passes the message on.
func (s *snapshotSink) Commit() error {
	bytes, err := s.Receiver.Commit()
	if err != nil {
		return fmt.Errorf("keep the snapshot of %d: %w", s.message.GetSnapshot().GetMetadata().GetIndex(), err)
	}
	s.host.metrics.snapshotBytes.Set(float64(bytes))
	s.host.inbox.control(func(n *Node) error {
		n.Step(s.message)
		return nil
	})
	return nil
}
