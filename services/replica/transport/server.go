// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"hash/crc32"
	"io"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	replicav1 "github.com/kolocate/kolocate/api/proto/replica/v1"
)

// Register registers the service that peers call.
func (t *Transport) Register(s grpc.ServiceRegistrar) { replicav1.RegisterReplicaServer(s, t) }

// Send implements replicav1.ReplicaServer.
func (t *Transport) Send(stream grpc.ClientStreamingServer[replicav1.SendRequest, replicav1.SendResponse]) error {
	return t.serve(func() error { return t.receive(stream) })
}

// SendSnapshot implements replicav1.ReplicaServer.
func (t *Transport) SendSnapshot(stream grpc.ClientStreamingServer[replicav1.SnapshotChunk, replicav1.SnapshotResponse]) error {
	return t.serve(func() error { return t.receiveSnapshot(stream) })
}

// serve runs fn until it ends or the transport is closed; then the stream ends and fn with it.
func (t *Transport) serve(fn func() error) error {
	done := make(chan error, 1)
	if !t.spawn(func() { done <- fn() }) {
		return status.Error(codes.Unavailable, "the replica is stopped")
	}
	select {
	case err := <-done:
		return err
	case <-t.ctx.Done():
		return status.Error(codes.Unavailable, "the replica is stopped")
	}
}

// check refuses what is meant for another group or replica.
func (t *Transport) check(group string, to uint64) error {
	if group != t.cfg.Group || to != t.cfg.ID {
		return status.Errorf(codes.FailedPrecondition,
			"a message for replica %d of group %q reached replica %d of group %q: correct the peers' addresses", to, group, t.cfg.ID, t.cfg.Group)
	}
	return nil
}

// receive passes the messages of a stream on.
func (t *Transport) receive(stream grpc.ClientStreamingServer[replicav1.SendRequest, replicav1.SendResponse]) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&replicav1.SendResponse{}) //nolint:wrapcheck // a status
		}
		if err != nil {
			return err //nolint:wrapcheck // a status
		}
		if err := t.check(request.GetGroup(), request.GetTo()); err != nil {
			return err
		}
		for _, encoded := range request.GetMessages() {
			m, err := t.decode(encoded)
			if err != nil {
				return err
			}
			if m.GetType() == raftpb.MsgSnap {
				return status.Error(codes.InvalidArgument, "a snapshot came without its file: send it by SendSnapshot")
			}
			t.cfg.Handler.Receive(m)
		}
	}
}

// decode decodes a message and checks that it is one that members send each other.
func (t *Transport) decode(encoded []byte) (*raftpb.Message, error) {
	m := &raftpb.Message{}
	if err := proto.Unmarshal(encoded, m); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "decode a message: %v", err)
	}
	if _, known := t.cfg.Peers[m.GetFrom()]; !known || m.GetFrom() == t.cfg.ID || m.GetTo() != t.cfg.ID {
		return nil, status.Errorf(codes.InvalidArgument, "a message from replica %d to replica %d reached replica %d", m.GetFrom(), m.GetTo(), t.cfg.ID)
	}
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgTimeoutNow, raftpb.MsgSnap:
		return m, nil
	default:
		return nil, status.Errorf(codes.InvalidArgument, "a message of type %s is not for another replica", m.GetType())
	}
}

// receiveSnapshot takes in one snapshot.
func (t *Transport) receiveSnapshot(stream grpc.ClientStreamingServer[replicav1.SnapshotChunk, replicav1.SnapshotResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err //nolint:wrapcheck // a status
	}
	if err := t.check(first.GetGroup(), first.GetTo()); err != nil {
		return err
	}
	m, err := t.decode(first.GetMessage())
	if err != nil {
		return err
	}
	if m.GetType() != raftpb.MsgSnap || m.GetSnapshot().GetMetadata().GetIndex() == 0 {
		return status.Errorf(codes.InvalidArgument, "a snapshot stream begins with a message of type %s", m.GetType())
	}
	sink, err := t.cfg.Handler.ReceiveSnapshot(m)
	if err != nil {
		return status.Errorf(codes.Unavailable, "receive a snapshot: %v", err)
	}
	if err := receiveChunks(stream, first, sink); err != nil {
		if abort := sink.Abort(); abort != nil {
			t.cfg.Logger.Warn("could not remove a part of a snapshot", "error", abort)
		}
		return err
	}
	if err := sink.Commit(); err != nil {
		return status.Errorf(codes.DataLoss, "receive a snapshot: %v", err)
	}
	return stream.SendAndClose(&replicav1.SnapshotResponse{}) //nolint:wrapcheck // a status
}

// receiveChunks writes the file into the sink.
func receiveChunks(stream grpc.ClientStreamingServer[replicav1.SnapshotChunk, replicav1.SnapshotResponse], chunk *replicav1.SnapshotChunk, sink io.Writer) error {
	for {
		if crc32.Checksum(chunk.GetData(), castagnoli) != chunk.GetChecksum() {
			return status.Error(codes.DataLoss, "the checksum of a part of a snapshot is wrong: send it again")
		}
		if _, err := sink.Write(chunk.GetData()); err != nil {
			return status.Errorf(codes.Unavailable, "receive a snapshot: %v", err)
		}
		if chunk.GetLast() {
			return nil
		}
		var err error
		if chunk, err = stream.Recv(); err != nil {
			return err //nolint:wrapcheck // a status
		}
	}
}
