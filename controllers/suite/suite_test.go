// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/kolocate/kolocate/controllers"
	"github.com/kolocate/kolocate/services/edge/translate"
)

// The environment that all tests share: one API server and one operator. Each
// test has a namespace of its own.
var (
	// kube reads from the API server itself and refuses unknown fields.
	kube client.Client
	// restConfig reaches the API server as the tests.
	restConfig *rest.Config
	// oracles holds the oracle of each store that a test started one for.
	oracles = &switchboard{servers: map[string]*fakeOracle{}}
	// writes records every request of the operator that is not a read.
	writes = &recorder{}
	// registry holds the operator's own metrics.
	registry = prometheus.NewRegistry()
)

const interval = 100 * time.Millisecond

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, fmt.Errorf("KUBEBUILDER_ASSETS is not set: run these tests by hack/test.sh, or set it to what hack/kube/envtest.sh prints")
	}
	log := logr.Discard()
	if os.Getenv("SUITE_LOG") != "" {
		log = logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctrl.SetLogger(log)
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "manifests", "crds")},
		ErrorIfCRDPathMissing: true,
		// The machine may be busy with other tests.
		ControlPlaneStartTimeout: 2 * time.Minute,
	}
	restConfig, err = environment.Start()
	if err != nil {
		return 1, fmt.Errorf("starting the API server: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	defer func() {
		cancel()
		if ended := <-stopped; err == nil {
			err = ended
		}
		if ended := environment.Stop(); err == nil {
			err = ended
		}
	}()
	mgr, err := prepare(ctx, environment)
	if err != nil {
		stopped <- nil
		return 1, err
	}
	go func() { stopped <- mgr.Start(ctx) }()
	return m.Run(), nil
}

// prepare makes the clients of the tests and an operator that has the rights of
// manifests/rbac and no others.
func prepare(ctx context.Context, environment *envtest.Environment) (ctrl.Manager, error) {
	scheme, err := controllers.Scheme()
	if err != nil {
		return nil, err
	}
	plain, err := client.New(restConfig, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	kube = client.WithFieldValidation(plain, metav1.FieldValidationStrict)
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", "rbac", "role.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the operator's role: %w", err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(text, role); err != nil {
		return nil, fmt.Errorf("reading the operator's role: %w", err)
	}
	// The chart that a test hands in brings a role of the first name.
	const name = "operator"
	role.Name = "suite-" + name
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}
	for _, object := range []client.Object{role, binding} {
		if err := kube.Create(ctx, object); err != nil {
			return nil, fmt.Errorf("giving the operator its rights: %w", err)
		}
	}
	user, err := environment.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		return nil, fmt.Errorf("adding the operator as a user: %w", err)
	}
	return newManager(user.Config(), scheme)
}

func newManager(config *rest.Config, scheme *runtime.Scheme) (ctrl.Manager, error) {
	cacheOptions, err := controllers.CacheOptions()
	if err != nil {
		return nil, err
	}
	own := rest.CopyConfig(config)
	own.QPS, own.Burst = 500, 1000
	own.Wrap(writes.wrap)
	mgr, err := ctrl.NewManager(own, ctrl.Options{Scheme: scheme, Cache: cacheOptions, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	return mgr, controllers.Setup(mgr, controllers.Options{
		Image: "kolocate:test", PartitionerImage: "partitioner:test", EnvoyImage: "envoy:test",
		Bootstrap:    bootstrap,
		OracleDialer: oracles.dial, StoreInterval: interval, RebalanceInterval: interval,
		History: 3, Workers: 4, Registerer: registry,
	})
}

func bootstrap(store string, controlPlane []string, admin string) ([]byte, error) {
	return translate.Bootstrap(translate.BootstrapConfig{Store: store, NodeID: store + "-edge", ControlPlane: controlPlane, Admin: admin})
}

// recorder is a transport that notes writes.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if request.Method != http.MethodGet {
			r.mu.Lock()
			r.lines = append(r.lines, request.Method+" "+request.URL.Path)
			r.mu.Unlock()
		}
		return next.RoundTrip(request)
	})
}

// in gives the writes in a namespace so far.
func (r *recorder) in(namespace string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []string
	for _, line := range r.lines {
		if strings.Contains(line, "/namespaces/"+namespace+"/") {
			found = append(found, line)
		}
	}
	return found
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// switchboard connects the operator to the oracles of the tests by the names
// that these would have in a cluster.
type switchboard struct {
	mu      sync.Mutex
	servers map[string]*fakeOracle
}

func (s *switchboard) dial(ctx context.Context, address string) (net.Conn, error) {
	// STORE-oracle-N.STORE-oracle.NAMESPACE.svc:7100
	labels := strings.Split(address, ".")
	if len(labels) != 4 || labels[3] != "svc:7100" {
		return nil, fmt.Errorf("unexpected address %q of an oracle", address)
	}
	name := labels[2] + "/" + strings.TrimSuffix(labels[1], "-oracle")
	s.mu.Lock()
	server := s.servers[name]
	s.mu.Unlock()
	if server == nil {
		return nil, fmt.Errorf("no oracle serves at %s", address)
	}
	return server.listener.DialContext(ctx)
}

// namespace makes a namespace that enforces the restricted Pod Security Standard.
func namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "suite-",
		Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := kube.Create(t.Context(), ns); err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	return ns.Name
}

// eventually waits until check gives nil, and fails with its last error.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v (last: %v)", what, err, last)
	}
}

func get[T client.Object](ctx context.Context, namespace, name string, into T) (T, error) {
	err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	return into, err
}
