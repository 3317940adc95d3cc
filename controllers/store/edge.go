// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kolocate/kolocate/api/v1alpha1"
	"github.com/kolocate/kolocate/controllers/workload"
)

// Bootstrap gives the file that an Envoy of a store starts with: it finds the
// control plane at one of the addresses (host:port) and serves its own admin
// interface at admin (address:port).
type Bootstrap func(store string, controlPlane []string, admin string) ([]byte, error)

const (
	bootstrapFile   = "envoy.yaml"
	bootstrapVolume = "bootstrap"
	bootstrapPath   = "/etc/envoy"
	// drainSeconds is how long an Envoy that is going away still takes requests,
	// so that clients and kube-proxy learn of it first.
	drainSeconds = 5
)

// edgeObjects gives the ConfigMap, Deployment, Service and PodDisruptionBudget
// of Envoy.
func edgeObjects(store *v1alpha1.Store, in inputs) ([]client.Object, error) {
	name := workload.Edge(store.Name)
	selector := workload.Selector(store.Name, workload.ComponentEdge)
	file, err := in.bootstrap(store.Name, workload.OracleAddresses(store), fmt.Sprintf("0.0.0.0:%d", workload.PortEdgeAdmin))
	if err != nil {
		return nil, fmt.Errorf("writing the bootstrap of Envoy for store %s/%s: %w", store.Namespace, store.Name, err)
	}
	sum := sha256.Sum256(file)
	return []client.Object{
		&corev1.ConfigMap{
			ObjectMeta: workload.Meta(store, name, selector),
			Data:       map[string]string{bootstrapFile: string(file)},
		},
		edgeService(store, name, selector),
		disruption(store, name, selector),
		edgeDeployment(store, name, selector, in.images.Envoy, hex.EncodeToString(sum[:8])),
	}, nil
}

func edgeService(store *v1alpha1.Store, name string, selector map[string]string) client.Object {
	grpc := port("grpc", workload.PortEdge)
	grpc.AppProtocol = ptr.To("kubernetes.io/h2c")
	ports := []corev1.ServicePort{grpc}
	kind := store.Spec.Edge.ServiceType
	if kind == "" || kind == corev1.ServiceTypeClusterIP {
		// Whoever reaches the admin interface can stop Envoy: it is offered
		// inside the cluster only.
		ports = append(ports, port("admin", workload.PortEdgeAdmin))
	}
	return &corev1.Service{
		ObjectMeta: workload.Meta(store, name, selector),
		Spec:       corev1.ServiceSpec{Type: kind, Selector: selector, Ports: ports},
	}
}

func edgeDeployment(store *v1alpha1.Store, name string, selector map[string]string, image, config string) client.Object {
	return &appsv1.Deployment{
		ObjectMeta: workload.Meta(store, name, selector),
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(store.Spec.Edge.Replicas),
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1)),
				},
			},
			Template: workload.Template(store, workload.Pod{
				Selector:     selector,
				Annotations:  map[string]string{v1alpha1.AnnotationConfig: config},
				MetricsPort:  workload.PortEdgeAdmin,
				MetricsPath:  "/stats/prometheus",
				GraceSeconds: drainSeconds + 25,
				Container:    envoy(store, image),
				Volumes: []corev1.Volume{
					{Name: bootstrapVolume, VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
					}},
					temporary(),
				},
			}),
		},
	}
}

func envoy(store *v1alpha1.Store, image string) corev1.Container {
	admin := intstr.FromString("admin")
	return corev1.Container{
		Name:  "envoy",
		Image: image,
		Args: []string{
			"--config-path", bootstrapPath + "/" + bootstrapFile,
			// The control plane tells Envoys apart by their node names.
			"--service-node", "$(POD_NAME)",
			"--service-cluster", store.Name,
			"--log-level", "warn",
			// Hot restart is for one process that replaces another in place; a
			// pod is replaced as a whole.
			"--disable-hot-restart",
		},
		Env:       []corev1.EnvVar{workload.FieldEnv("POD_NAME", "metadata.name")},
		Ports:     []corev1.ContainerPort{containerPort("grpc", workload.PortEdge), containerPort("admin", workload.PortEdgeAdmin)},
		Resources: store.Spec.Edge.Resources,
		VolumeMounts: []corev1.VolumeMount{
			{Name: bootstrapVolume, MountPath: bootstrapPath, ReadOnly: true},
			{Name: temporaryVolume, MountPath: "/tmp"},
		},
		// Ready once the control plane has given it a configuration.
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: admin, Scheme: corev1.URISchemeHTTP}},
			PeriodSeconds: 3, FailureThreshold: 3, TimeoutSeconds: 3,
		},
		LivenessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: admin}},
			PeriodSeconds: 10, FailureThreshold: 6, TimeoutSeconds: 5,
		},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: drainSeconds}}},
	}
}
