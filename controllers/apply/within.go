// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
)

// toMap gives an object as the tree that its JSON stands for, without nulls.
// Both sides of a comparison go through it, so that quantities and numbers are
// written alike.
func toMap(object runtime.Object) (map[string]any, error) {
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encoding %T: %w", object, err)
	}
	var content map[string]any
	if err := json.Unmarshal(encoded, &content); err != nil {
		return nil, fmt.Errorf("decoding %T: %w", object, err)
	}
	dropNulls(content)
	return content, nil
}

func dropNulls(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, element := range value {
			if element == nil {
				delete(value, key)
				continue
			}
			dropNulls(element)
		}
	case []any:
		for _, element := range value {
			dropNulls(element)
		}
	}
}

// within says whether live holds everything that wanted says. Live may have more
// fields (defaults, fields of others), but not more elements in a list.
func within(wanted, live any) bool {
	switch wanted := wanted.(type) {
	case map[string]any:
		other, ok := live.(map[string]any)
		if !ok {
			// An empty map and an absent one are the same wish.
			return live == nil && len(wanted) == 0
		}
		for key, element := range wanted {
			if !within(element, other[key]) {
				return false
			}
		}
		return true
	case []any:
		other, ok := live.([]any)
		if !ok || len(other) != len(wanted) {
			return live == nil && len(wanted) == 0
		}
		for i, element := range wanted {
			if !within(element, other[i]) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(wanted, live) || (live == nil && isZero(wanted))
	}
}

func isZero(value any) bool {
	return value == nil || reflect.ValueOf(value).IsZero()
}
