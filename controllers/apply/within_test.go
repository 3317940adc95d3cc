// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"math/rand/v2"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/json"
)

func TestWithin(t *testing.T) {
	for name, test := range map[string]struct {
		wanted, live string
		want         bool
	}{
		"equal":                  {`{"a":1,"b":["x"]}`, `{"a":1,"b":["x"]}`, true},
		"defaults were added":    {`{"a":1}`, `{"a":1,"policy":"Always"}`, true},
		"in an element too":      {`{"c":[{"name":"x"}]}`, `{"c":[{"name":"x","port":1}]}`, true},
		"value changed":          {`{"a":1}`, `{"a":2}`, false},
		"value is gone":          {`{"a":1}`, `{}`, false},
		"element was added":      {`{"c":[{"name":"x"}]}`, `{"c":[{"name":"x"},{"name":"y"}]}`, false},
		"element is gone":        {`{"c":[1,2]}`, `{"c":[1]}`, false},
		"order changed":          {`{"c":[1,2]}`, `{"c":[2,1]}`, false},
		"empty and absent":       {`{"m":{},"l":[],"s":"","b":false,"n":0}`, `{}`, true},
		"empty wish, other live": {`{"s":""}`, `{"s":"x"}`, false},
		"another type":           {`{"a":{"b":1}}`, `{"a":"b"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := within(decode(t, test.wanted), decode(t, test.live)); got != test.want {
				t.Errorf("within(%s, %s) = %t, want %t", test.wanted, test.live, got, test.want)
			}
		})
	}
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var value map[string]any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// TestWithinSeesEveryChange holds that a tree lies within itself with fields
// added, and no longer once any leaf of the wanted tree is changed.
func TestWithinSeesEveryChange(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			wanted := randomTree(random, 3)
			live, _ := copyTree(wanted, random, -1).(map[string]any)
			if !within(wanted, live) {
				t.Fatalf("%v is not within %v", wanted, live)
			}
			leaves := 0
			countLeaves(wanted, &leaves)
			if leaves == 0 {
				return
			}
			changed := copyTree(wanted, random, random.IntN(leaves))
			if within(wanted, changed) {
				t.Fatalf("%v is within %v, of which a leaf was changed", wanted, changed)
			}
		})
	}
}

func randomTree(random *rand.Rand, depth int) map[string]any {
	tree := map[string]any{}
	for i := range random.IntN(4) {
		key := string(rune('a' + i))
		switch kind := random.IntN(3); {
		case kind == 0 && depth > 0:
			tree[key] = randomTree(random, depth-1)
		case kind == 1 && depth > 0:
			list := []any{}
			for range 1 + random.IntN(2) {
				list = append(list, randomTree(random, depth-1))
			}
			tree[key] = list
		default:
			tree[key] = int64(1 + random.IntN(9))
		}
	}
	return tree
}

func countLeaves(value any, n *int) {
	switch value := value.(type) {
	case map[string]any:
		for _, element := range value {
			countLeaves(element, n)
		}
	case []any:
		for _, element := range value {
			countLeaves(element, n)
		}
	default:
		*n++
	}
}

// copyTree copies a tree with fields added at random, and changes the leaf that
// is reached after the given number of others; -1 changes none.
func copyTree(value any, random *rand.Rand, change int) any {
	left := change
	var walk func(any) any
	walk = func(value any) any {
		switch value := value.(type) {
		case map[string]any:
			out := map[string]any{}
			for key, element := range value {
				out[key] = walk(element)
			}
			if random.IntN(2) == 0 {
				out["added"] = "by someone"
			}
			return out
		case []any:
			out := make([]any, 0, len(value))
			for _, element := range value {
				out = append(out, walk(element))
			}
			return out
		default:
			left--
			if change >= 0 && left == -1 {
				return "changed"
			}
			return value
		}
	}
	return walk(value)
}

// TestQuantitiesAreComparedByValue holds that a quantity is written alike on
// both sides, however it was spelled.
func TestQuantitiesAreComparedByValue(t *testing.T) {
	list := func(text string) *corev1.ResourceRequirements {
		return &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(text)}}
	}
	pod := func(text string) map[string]any {
		content, err := toMap(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Resources: *list(text)}}}})
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	if !within(pod("1000m"), pod("1")) {
		t.Error("1000m and 1 are taken for different")
	}
	if within(pod("1000m"), pod("2")) {
		t.Error("1000m and 2 are taken for equal")
	}
}
