// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kahip owns the call into the KaHIP library (Sanders and Schulz,
// "Think locally, act globally: highly balanced graph partitioning", SEA 2013).
// It never plans or reads a graph from outside. The partitioner program uses it.
package kahip

/*
#cgo LDFLAGS: -lkahip_static -lstdc++ -lgomp -lm
#include <stdbool.h>

// Declared here because KaHIP's header is C++. kahip_idx is 32 bits wide in the
// published library, which kahip_sizeof_idx proves at run time.
int kahip_sizeof_idx();
void kaffpa(int* n, int* vwgt, int* xadj, int* adjcwgt, int* adjncy, int* nparts,
            double* imbalance, bool suppress_output, int seed, int mode,
            int* edgecut, int* part);
*/
import "C"

import (
	"context"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/kolocate/kolocate/services/partitioner/plan"
)

// version is that of the library that hack/deps fetches.
const version = "3.25"

// library is held during a call: KaHIP keeps its random source and its
// configuration in global variables.
var library = make(chan struct{}, 1)

// Partitioner runs kaffpa, KaHIP's multilevel partitioner, on one thread. It
// may be used concurrently; the calls run one after the other.
type Partitioner struct{}

var _ plan.Partitioner = Partitioner{}

// Name implements plan.Partitioner.
func (Partitioner) Name() string { return "KaHIP " + version }

// Partition implements plan.Partitioner. A call into the library cannot be
// interrupted: when the context ends first, Partition returns its error and the
// call goes on in the background, so the process should end soon.
func (Partitioner) Partition(ctx context.Context, graph *plan.CSR, parts int, options plan.PartitionOptions) ([]int32, error) {
	mode := slices.Index(plan.Preconfigurations, options.Preconfiguration)
	if mode < 0 {
		return nil, fmt.Errorf("partition: preconfiguration %q is unknown, expected one of %q", options.Preconfiguration, plan.Preconfigurations)
	}
	if parts < 1 || parts > math.MaxInt16 {
		return nil, fmt.Errorf("partition: %d parts, expected 1 to %d", parts, math.MaxInt16)
	}
	if !(options.Imbalance >= 0 && options.Imbalance <= 10) {
		return nil, fmt.Errorf("partition: imbalance %g, expected 0 to 10", options.Imbalance)
	}
	err := graph.Check()
	if err != nil {
		return nil, fmt.Errorf("partition: %w", err)
	}
	if width := int(C.kahip_sizeof_idx()); width != 4 {
		return nil, fmt.Errorf("partition: the linked KaHIP has indexes of %d bytes, expected 4: link the published library %s", width, version)
	}
	n := len(graph.VertexWeights)
	if n == 0 {
		return nil, context.Cause(ctx)
	}
	if parts == 1 || n == 1 {
		return make([]int32, n), context.Cause(ctx)
	}
	select {
	case library <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("partition: waiting for the library: %w", context.Cause(ctx))
	}
	done := make(chan []int32, 1)
	go func() {
		defer func() { <-library }()
		done <- kaffpa(graph, parts, options, mode)
	}()
	select {
	case part := <-done:
		if bad := slices.IndexFunc(part, func(p int32) bool { return p < 0 || int(p) >= parts }); bad >= 0 {
			return nil, fmt.Errorf("partition: KaHIP put vertex %d into part %d of %d", bad, part[bad], parts)
		}
		return part, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("partition %d vertices and %d edges: %w", n, len(graph.Neighbours)/2, context.Cause(ctx))
	}
}

func kaffpa(graph *plan.CSR, parts int, options plan.PartitionOptions, mode int) []int32 {
	part := make([]int32, len(graph.VertexWeights))
	n, k := C.int(len(part)), C.int(parts)
	imbalance := C.double(options.Imbalance)
	seed := C.int(options.Seed % math.MaxInt32)
	var cut C.int
	C.kaffpa(&n, ints(graph.VertexWeights), ints(graph.Offsets), ints(graph.EdgeWeights), ints(graph.Neighbours), &k,
		&imbalance, C.bool(true), seed, C.int(mode), &cut, ints(part))
	return part
}

// ints passes a slice to C without a copy; KaHIP writes only into part. C's int
// has 32 bits on every platform KaHIP is published for.
func ints(s []int32) *C.int {
	return (*C.int)(unsafe.Pointer(unsafe.SliceData(s)))
}
