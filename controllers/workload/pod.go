// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kolocate/kolocate/api/v1alpha1"
)

// user is the user and group of every container: nobody, as in the images.
const user = 65532

// Images are what the containers of a store run.
type Images struct {
	Kolocate, Partitioner, Envoy string
}

// For gives the images of a store: its own where it names some.
func (i Images) For(store *v1alpha1.Store) Images {
	override(&i.Kolocate, store.Spec.Images.Kolocate)
	override(&i.Partitioner, store.Spec.Images.Partitioner)
	override(&i.Envoy, store.Spec.Images.Envoy)
	return i
}

func override(image *string, by string) {
	if by != "" {
		*image = by
	}
}

// Pod is what differs between the pods of a store.
type Pod struct {
	Selector    map[string]string
	Annotations map[string]string
	// MetricsPort and MetricsPath are where Prometheus finds the metrics; port 0
	// means that there are none.
	MetricsPort int
	MetricsPath string
	Container   corev1.Container
	Volumes     []corev1.Volume
	// GraceSeconds is the time from the signal to stop to the kill.
	GraceSeconds int64
	// RestartPolicy is Always if empty.
	RestartPolicy corev1.RestartPolicy
}

// Template lays the pod template of the store and the settings that all pods
// share over a pod: no privilege, no token, a read-only root file system.
func Template(store *v1alpha1.Store, pod Pod) corev1.PodTemplateSpec {
	overlay := store.Spec.PodTemplate
	labels := maps.Clone(overlay.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, Labels(store.Name, pod.Selector))
	annotations := maps.Clone(overlay.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, pod.Annotations)
	if pod.MetricsPort != 0 {
		annotations["prometheus.io/scrape"] = "true"
		annotations["prometheus.io/port"] = fmt.Sprint(pod.MetricsPort)
		annotations["prometheus.io/path"] = pod.MetricsPath
	}
	container := pod.Container
	container.ImagePullPolicy = store.Spec.Images.PullPolicy
	container.SecurityContext = containerSecurity()
	container.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{container},
			Volumes:                       pod.Volumes,
			ServiceAccountName:            store.Name,
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To(pod.GraceSeconds),
			RestartPolicy:                 pod.RestartPolicy,
			SecurityContext:               podSecurity(),
			ImagePullSecrets:              store.Spec.Images.PullSecrets,
			NodeSelector:                  overlay.NodeSelector,
			Tolerations:                   overlay.Tolerations,
			Affinity:                      overlay.Affinity,
			PriorityClassName:             overlay.PriorityClassName,
			TopologySpreadConstraints:     spread(pod.Selector),
		},
	}
}

// podSecurity and containerSecurity meet the restricted profile of the Pod
// Security Standards.
func podSecurity() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		RunAsNonRoot: ptr.To(true),
		RunAsUser:    ptr.To(int64(user)),
		RunAsGroup:   ptr.To(int64(user)),
		FSGroup:      ptr.To(int64(user)),
		// Volumes with many files start at once, not after a walk over all of them.
		FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch),
		SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func containerSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false),
		ReadOnlyRootFilesystem:   ptr.To(true),
		RunAsNonRoot:             ptr.To(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// spread keeps the replicas of one component on different nodes where it can.
func spread(selector map[string]string) []corev1.TopologySpreadConstraint {
	if selector == nil {
		return nil
	}
	return []corev1.TopologySpreadConstraint{{
		MaxSkew:           1,
		TopologyKey:       corev1.LabelHostname,
		WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector:     &metav1.LabelSelector{MatchLabels: selector},
	}}
}

// FieldEnv is an environment variable that holds a field of the pod.
func FieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}
