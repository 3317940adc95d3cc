// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply owns how objects are written: by server-side apply, with an
// owner, and only when something differs. It never decides what an object
// should be. The controllers call it with what they want.
package apply

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/kolocate/kolocate/api/v1alpha1"
)

// FieldOwner is the manager of every field that the operator sets.
const FieldOwner = "kolocate-operator"

// Why an object was written, or Unchanged.
const (
	Unchanged = ""
	Created   = "it did not exist"
	Changed   = "what is wanted changed"
	Drifted   = "it was changed by someone else"
)

// ErrForeign is the kind of error for an object that belongs to someone else.
var ErrForeign = errors.New("the object belongs to someone else")

// Apply makes live what desired says, and owner its controller. It gives the
// reason for which it wrote, or Unchanged. Nothing is sent when the object
// already holds every wanted field and was last applied from the same wish: the
// live object is read through c, which should be a cache.
//
// Fields that others set, as the autoscaler does, stay theirs. An object of that
// name with another controller is left alone with ErrForeign.
func Apply(ctx context.Context, c client.Client, owner, desired client.Object) (string, error) {
	wanted, err := prepare(c, owner, desired)
	if err != nil {
		return Unchanged, err
	}
	live, err := read(ctx, c, desired)
	if err != nil {
		return Unchanged, err
	}
	reason := Created
	if live != nil {
		if reason, err = compare(owner, wanted, live); err != nil || reason == Unchanged {
			return Unchanged, err
		}
	}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(wanted), client.FieldOwner(FieldOwner), client.ForceOwnership)
	if err != nil {
		return Unchanged, fmt.Errorf("applying %s: %w", name(wanted), err)
	}
	return reason, nil
}

// Status writes the status of after if it differs from that of before.
func Status(ctx context.Context, c client.Client, before, after client.Object) (bool, error) {
	if equality.Semantic.DeepEqual(before, after) {
		return false, nil
	}
	if err := c.Status().Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(FieldOwner)); err != nil {
		return false, fmt.Errorf("writing the status of %s/%s: %w", after.GetNamespace(), after.GetName(), err)
	}
	return true, nil
}

// prepare turns desired into what is sent: with kind, owner and the hash of
// itself, without a status.
func prepare(c client.Client, owner, desired client.Object) (*unstructured.Unstructured, error) {
	gvk, err := apiutil.GVKForObject(desired, c.Scheme())
	if err != nil {
		return nil, fmt.Errorf("finding the kind of %s/%s: %w", desired.GetNamespace(), desired.GetName(), err)
	}
	object, err := copyOf(desired)
	if err != nil {
		return nil, err
	}
	if err := controllerutil.SetControllerReference(owner, object, c.Scheme()); err != nil {
		return nil, fmt.Errorf("setting the owner of %s %s/%s: %w", gvk.Kind, desired.GetNamespace(), desired.GetName(), err)
	}
	content, err := toMap(object)
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	wanted := &unstructured.Unstructured{Object: content}
	wanted.SetGroupVersionKind(gvk)
	encoded, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", name(wanted), err)
	}
	annotations := wanted.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	sum := sha256.Sum256(encoded)
	annotations[v1alpha1.AnnotationApplied] = hex.EncodeToString(sum[:8])
	wanted.SetAnnotations(annotations)
	return wanted, nil
}

// read gives the live object of desired's kind and name, or nil.
func read(ctx context.Context, c client.Client, desired client.Object) (client.Object, error) {
	live, err := copyOf(desired)
	if err != nil {
		return nil, err
	}
	err = c.Get(ctx, client.ObjectKeyFromObject(desired), live)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // no object is an answer, not an error
	}
	if err != nil {
		return nil, fmt.Errorf("reading %T %s/%s: %w", desired, desired.GetNamespace(), desired.GetName(), err)
	}
	return live, nil
}

func copyOf(object client.Object) (client.Object, error) {
	duplicate, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return nil, fmt.Errorf("copying %T: expected a copy of the same type", object)
	}
	return duplicate, nil
}

func compare(owner client.Object, wanted *unstructured.Unstructured, live client.Object) (string, error) {
	if controller := controllerOf(live); controller != "" && controller != string(owner.GetUID()) {
		return Unchanged, fmt.Errorf("applying %s: %w: delete or rename it", name(wanted), ErrForeign)
	}
	if live.GetDeletionTimestamp() != nil {
		return Unchanged, fmt.Errorf("applying %s: it is being deleted", name(wanted))
	}
	if live.GetAnnotations()[v1alpha1.AnnotationApplied] != wanted.GetAnnotations()[v1alpha1.AnnotationApplied] {
		return Changed, nil
	}
	content, err := toMap(live)
	if err != nil {
		return Unchanged, err
	}
	// A typed object from the cache has no kind.
	content["apiVersion"], content["kind"] = wanted.Object["apiVersion"], wanted.Object["kind"]
	if !within(wanted.Object, content) {
		return Drifted, nil
	}
	return Unchanged, nil
}

func controllerOf(object client.Object) string {
	for _, reference := range object.GetOwnerReferences() {
		if reference.Controller != nil && *reference.Controller {
			return string(reference.UID)
		}
	}
	return ""
}

func name(u *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName())
}
