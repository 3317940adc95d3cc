// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// fault is a state that does not mend itself: a reason for a condition, and a
// text that says what to do.
type fault struct {
	reason  string
	message string
}

// Reasons of faults.
const (
	reasonImagePull         = "ImagePullFailed"
	reasonContainerConfig   = "ContainerConfigInvalid"
	reasonCrashLoop         = "ContainerCrashes"
	reasonUnschedulable     = "PodUnschedulable"
	reasonVolumePending     = "VolumePending"
	reasonOracleUnreachable = "OracleUnreachable"
	reasonPolicyRefused     = "PolicyRefused"
	reasonShardsRefused     = "ShardsRefused"
	reasonApplyFailed       = "ApplyFailed"
)

// patience is how long a pod or volume may be pending before it counts as a
// fault: provisioning and autoscaling take that long in good health.
const patience = time.Minute

// waitingReasons are the states of a container, as the kubelet names them, that
// do not mend themselves.
var waitingReasons = map[string]string{
	"ErrImagePull":               reasonImagePull,
	"ImagePullBackOff":           reasonImagePull,
	"ImageInspectError":          reasonImagePull,
	"ErrImageNeverPull":          reasonImagePull,
	"InvalidImageName":           reasonImagePull,
	"CreateContainerConfigError": reasonContainerConfig,
	"CreateContainerError":       reasonContainerConfig,
	"RunContainerError":          reasonContainerConfig,
	"CrashLoopBackOff":           reasonCrashLoop,
}

// findFault gives the first fault of the pods and volume claims in the order of
// their names, or nil.
func findFault(pods []corev1.Pod, claims []corev1.PersistentVolumeClaim, now time.Time) *fault {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for i := range pods {
		if f := podFault(&pods[i], now); f != nil {
			return f
		}
	}
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(a, b corev1.PersistentVolumeClaim) int { return strings.Compare(a.Name, b.Name) })
	for i := range claims {
		claim := &claims[i]
		if claim.Status.Phase == corev1.ClaimLost || (claim.Status.Phase == corev1.ClaimPending && now.Sub(claim.CreationTimestamp.Time) > patience) {
			return &fault{reasonVolumePending, fmt.Sprintf(
				"volume claim %s is %s: check that storage class %q exists and can provision it (kubectl describe pvc %s)",
				claim.Name, claim.Status.Phase, className(claim), claim.Name)}
		}
	}
	return nil
}

func className(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName == nil {
		return "the default one"
	}
	return *claim.Spec.StorageClassName
}

func podFault(pod *corev1.Pod, now time.Time) *fault {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	for _, status := range pod.Status.ContainerStatuses {
		waiting := status.State.Waiting
		if waiting == nil {
			continue
		}
		if reason, bad := waitingReasons[waiting.Reason]; bad {
			return &fault{reason, fmt.Sprintf("pod %s: %s: %s", pod.Name, waiting.Reason, waitingMessage(status))}
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse &&
			condition.Reason == corev1.PodReasonUnschedulable && now.Sub(pod.CreationTimestamp.Time) > patience {
			return &fault{reasonUnschedulable, fmt.Sprintf("pod %s fits on no node: %s", pod.Name, condition.Message)}
		}
	}
	return nil
}

// waitingMessage prefers what the program said when it ended over what the
// kubelet says about the next start.
func waitingMessage(status corev1.ContainerStatus) string {
	const limit = 512
	message := status.State.Waiting.Message
	if last := status.LastTerminationState.Terminated; last != nil {
		if text := strings.TrimSpace(last.Message); text != "" {
			message = text
		}
	}
	if len(message) > limit {
		message = "…" + strings.ToValidUTF8(message[len(message)-limit:], "")
	}
	return message
}
