// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/workload"
)

// inputs is all that the objects of a store depend on beside its spec.
type inputs struct {
	images workload.Images
	// initialShards is what the oracle was first started with. It stays when
	// shards are added, so that the oracle is not restarted for it.
	initialShards int32
	bootstrap     Bootstrap
}

// desired gives every object that a store should have, in the order in which
// they are applied. It depends on its arguments alone.
func desired(store *v1alpha1.Store, in inputs) ([]client.Object, error) {
	in.images = in.images.For(store)
	objects := []client.Object{account(store)}
	objects = append(objects, oracleObjects(store, in)...)
	for shard := int32(1); shard <= store.Spec.Shards; shard++ {
		objects = append(objects, shardObjects(store, shard, in)...)
	}
	edge, err := edgeObjects(store, in)
	if err != nil {
		return nil, err
	}
	return append(objects, edge...), nil
}

// account is what all pods of the store run as. No program of a store calls the
// Kubernetes API, so it has no role and its token is not mounted.
func account(store *v1alpha1.Store) client.Object {
	return &corev1.ServiceAccount{
		ObjectMeta:                   workload.Meta(store, store.Name, nil),
		AutomountServiceAccountToken: ptr.To(false),
	}
}

func headless(store *v1alpha1.Store, name string, selector map[string]string, ports ...corev1.ServicePort) client.Object {
	return &corev1.Service{
		ObjectMeta: workload.Meta(store, name, selector),
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone,
			Selector:  selector,
			Ports:     ports,
			// Replicas find each other before they are ready: without a quorum
			// none ever gets ready.
			PublishNotReadyAddresses: true,
		},
	}
}

func port(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString(name)}
}

func containerPort(name string, number int32) corev1.ContainerPort {
	return corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: corev1.ProtocolTCP}
}

// disruption lets one pod at a time be evicted. For a single replica that means
// a gap in its service, which is better than a node that cannot be drained.
func disruption(store *v1alpha1.Store, name string, selector map[string]string) client.Object {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: workload.Meta(store, name, selector),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)),
			Selector:       &metav1.LabelSelector{MatchLabels: selector},
		},
	}
}

// member is one Raft group: a shard or the oracle.
type member struct {
	name      string
	selector  map[string]string
	replicas  int32
	grpcPort  int32
	metrics   int32
	storage   v1alpha1.Storage
	resources corev1.ResourceRequirements
	image     string
	args      []string
}

// peers lists the replicas of a group as the programs read them: 1=host:port,…
func (m member) peers(namespace string) string {
	var list string
	for ordinal := range m.replicas {
		if ordinal > 0 {
			list += ","
		}
		list += fmt.Sprintf("%d=%s", ordinal+1, workload.PodAddress(m.name, namespace, ordinal, int(m.grpcPort)))
	}
	return list
}

const (
	dataVolume = "data"
	dataPath   = "/var/lib/kolocate"
)

// statefulSet gives the StatefulSet of a Raft group. Its pods start at the same
// time, because a quorum of them is needed before one is ready, and are replaced
// one after the other.
func (m member) statefulSet(store *v1alpha1.Store) *appsv1.StatefulSet {
	retention := appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	if m.storage.Retention == v1alpha1.RetentionRetain {
		retention = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	return &appsv1.StatefulSet{
		ObjectMeta: workload.Meta(store, m.name, m.selector),
		Spec: appsv1.StatefulSetSpec{
			Replicas:            ptr.To(m.replicas),
			ServiceName:         m.name,
			PodManagementPolicy: appsv1.ParallelPodManagement,
			// A replica that came back has joined its group before the next one
			// is replaced.
			MinReadySeconds: 5,
			UpdateStrategy:  appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			Selector:        &metav1.LabelSelector{MatchLabels: m.selector},
			PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
				WhenDeleted: retention, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			},
			Template: workload.Template(store, workload.Pod{
				Selector:     m.selector,
				MetricsPort:  int(m.metrics),
				MetricsPath:  "/metrics",
				GraceSeconds: 60,
				Container:    m.container(),
				Volumes:      []corev1.Volume{temporary()},
			}),
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: dataVolume, Labels: workload.Labels(store.Name, m.selector)},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					StorageClassName: m.storage.StorageClassName,
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceStorage: m.storage.Size},
					},
				},
			}},
		},
	}
}

func (m member) container() corev1.Container {
	return corev1.Container{
		Name:  "kolocate",
		Image: m.image,
		Args:  m.args,
		Env: []corev1.EnvVar{
			workload.FieldEnv("POD_NAME", "metadata.name"),
			workload.FieldEnv("POD_IP", "status.podIP"),
		},
		Ports:     []corev1.ContainerPort{containerPort("grpc", m.grpcPort), containerPort("metrics", m.metrics)},
		Resources: m.resources,
		VolumeMounts: []corev1.VolumeMount{
			{Name: dataVolume, MountPath: dataPath},
			{Name: temporaryVolume, MountPath: "/tmp"},
		},
		// A replica that replays a long log is given ten minutes before it counts
		// as hung.
		StartupProbe:   m.health(2, 300),
		ReadinessProbe: m.health(5, 3),
		// The health service answers for the process alone: a replica without
		// its peers is not killed for it.
		LivenessProbe: m.health(10, 6),
	}
}

func (m member) health(period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: m.grpcPort, Service: ptr.To("")}},
		PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 3,
	}
}

const temporaryVolume = "tmp"

// temporary is the only place outside the data volume that programs may write to.
func temporary() corev1.Volume {
	return corev1.Volume{Name: temporaryVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

func listen(number int32) string { return ":" + strconv.Itoa(int(number)) }
