// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"

	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
	"github.com/kolocate/kolocate/services/keyspace"
)

// The unary calls as commands.

func oneOp(id *kvv1.CommandId, key []byte, op *kvv1.Op) *kvv1.Command {
	return &kvv1.Command{Id: id, Keys: [][]byte{key}, ThenOps: []*kvv1.Op{op}}
}

func getCommand(m *kvv1.GetRequest) *kvv1.Command {
	return oneOp(nil, m.GetKey(), &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_GET})
}

func putCommand(m *kvv1.PutRequest) *kvv1.Command {
	return oneOp(m.GetId(), m.GetKey(), &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_PUT, Value: m.GetValue()})
}

func deleteCommand(m *kvv1.DeleteRequest) *kvv1.Command {
	return oneOp(m.GetId(), m.GetKey(), &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_DELETE})
}

func incrementCommand(m *kvv1.IncrementRequest) *kvv1.Command {
	return oneOp(m.GetId(), m.GetKey(), &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_INCREMENT, Delta: m.GetDelta()})
}

func compareAndSwapCommand(m *kvv1.CompareAndSwapRequest) *kvv1.Command {
	cmd := oneOp(m.GetId(), m.GetKey(), &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_PUT, Value: m.GetValue()})
	compare := &kvv1.Compare{Kind: kvv1.CompareKind_COMPARE_KIND_VALUE_EQUAL, Value: m.GetExpected()}
	if m.GetExpectAbsent() {
		compare = &kvv1.Compare{Kind: kvv1.CompareKind_COMPARE_KIND_ABSENT}
	}
	cmd.Compares = []*kvv1.Compare{compare}
	cmd.ElseOps = []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_GET}}
	return cmd
}

func scanCommand(m *kvv1.ScanRequest) (*kvv1.Command, error) {
	op := &kvv1.Op{Kind: kvv1.OpKind_OP_KIND_SCAN_RANGE, End: m.GetEnd(), Limit: m.GetLimit()}
	if len(m.GetWithinVertex()) == 0 {
		return oneOp(nil, m.GetStart(), op), nil
	}
	vertex := keyspace.Vertex(m.GetWithinVertex())
	for _, bound := range [2][]byte{m.GetStart(), m.GetEnd()} {
		if v := keyspace.VertexOf(string(bound)); len(bound) > 0 && v != vertex {
			return nil, fmt.Errorf("scan within vertex %.64q: the bound %.64q lies in vertex %.64q; give bounds of the vertex, or none", vertex, bound, v)
		}
	}
	op.Kind = kvv1.OpKind_OP_KIND_SCAN_VERTEX
	key := m.GetStart()
	if len(key) == 0 {
		op.FromFirst = true
		if key = m.GetWithinVertex(); keyspace.VertexOf(string(key)) != vertex {
			key = []byte("{" + string(vertex) + "}")
		}
	}
	return oneOp(nil, key, op), nil
}

func txnCommand(m *kvv1.TxnRequest) (*kvv1.Command, error) {
	index := make(map[string]uint32, len(m.GetKeys()))
	for i, key := range m.GetKeys() {
		index[string(key)] = uint32(i)
	}
	cmd := &kvv1.Command{Id: m.GetId(), Keys: m.GetKeys()}
	for _, c := range m.GetCompares() {
		at, ok := index[string(c.GetKey())]
		if !ok {
			return nil, undeclared(c.GetKey())
		}
		cmd.Compares = append(cmd.Compares, &kvv1.Compare{Key: at, Kind: c.GetKind(), Value: c.GetValue(), Version: c.GetVersion()})
	}
	var err error
	if cmd.ThenOps, err = txnOps(index, m.GetThenOps()); err != nil {
		return nil, err
	}
	cmd.ElseOps, err = txnOps(index, m.GetElseOps())
	return cmd, err
}

func txnOps(index map[string]uint32, ops []*kvv1.TxnOp) ([]*kvv1.Op, error) {
	var out []*kvv1.Op
	for _, op := range ops {
		at, ok := index[string(op.GetKey())]
		if !ok {
			return nil, undeclared(op.GetKey())
		}
		switch op.GetKind() {
		case kvv1.OpKind_OP_KIND_SCAN_VERTEX, kvv1.OpKind_OP_KIND_SCAN_RANGE:
			return nil, fmt.Errorf("check a transaction: an op on key %.64q scans; use Scan for that", op.GetKey())
		default:
		}
		out = append(out, &kvv1.Op{Key: at, Kind: op.GetKind(), Value: op.GetValue(), Delta: op.GetDelta()})
	}
	return out, nil
}

func undeclared(key []byte) error {
	return fmt.Errorf("check a transaction: key %.64q is not declared; name every key of the compares and ops in keys", key)
}
