// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transport owns the wire between the members of one Raft group: gRPC streams with bounded queues.
// It never decides anything about the log, and may lose messages, which Raft allows.
// The host of services/replica calls it.
package transport

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// MaxMessageBytes is the size of the largest gRPC message between members.
const MaxMessageBytes = 16 << 20

// ServerOptions are the options of a gRPC server that receives from peers.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
}
