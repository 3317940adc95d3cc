// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kolocate/kolocate/api/v1alpha1"
)

// Where everything lies. The namespaces demand restricted pods, so a pod that
// asks for a privilege does not start.
const (
	release           = "kolocate"
	operatorNamespace = "kolocate-system"
	storeNamespace    = "shop"
	clientNamespace   = "clients"
	monitorNamespace  = "monitoring"
	storeName         = "social"
)

// cluster is the cluster under test and the programs to reach it with.
type cluster struct {
	kube client.WithWatch
	// Programs, from the environment that run.sh sets.
	kubectl, helm, kolocate, promcheck, promtool string
	// tag of the images, node is the container that is the cluster's only node.
	tag, node string
	// output takes what is worth keeping; root is the checkout.
	output, root string
	started      time.Time

	// rebalance is set once one has ended, load while the Job runs.
	rebalance *v1alpha1.Rebalance
	watch     *phaseWatch
	collected bool
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	env := func(name string) string {
		value := os.Getenv(name)
		if value == "" {
			t.Fatalf("%s is not set: run this test by e2e/run.sh", name)
		}
		return value
	}
	config, err := clientcmd.BuildConfigFromFlags("", env("KUBECONFIG"))
	if err != nil {
		t.Fatalf("reading KUBECONFIG: %v", err)
	}
	config.QPS, config.Burst = 100, 200
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatalf("adding the kinds of Kolocate: %v", err)
	}
	kube, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatalf("connecting to the cluster: %v", err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{
		kube: kube, kubectl: env("E2E_KUBECTL"), helm: env("E2E_HELM"), kolocate: env("E2E_KOLOCATE"),
		promcheck: env("E2E_PROMCHECK"), promtool: os.Getenv("E2E_PROMTOOL"), tag: env("E2E_TAG"), node: env("E2E_NODE"),
		output: env("E2E_OUTPUT"), root: root, started: time.Now(),
	}
}

func numbered(n int, name string) string { return fmt.Sprintf("%02d_%s", n, name) }

// say prints a line with the time since the start.
func (k *cluster) say(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("[%4.0f s] %s", time.Since(k.started).Seconds(), fmt.Sprintf(format, args...))
}

// run runs a program and returns what it printed; input is its standard input.
func (k *cluster) run(ctx context.Context, input, program string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, program, args...)
	command.Dir = k.root
	command.Stdin = strings.NewReader(input)
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(problems.String()))
	}
	return out.String(), nil
}

// must is run with a time limit, in which failure ends the check.
func (k *cluster) must(t *testing.T, limit time.Duration, input, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := k.run(ctx, input, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply applies a file of testdata in which {{TAG}} is the tag of the images.
func (k *cluster) apply(t *testing.T, file string, replace ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	replacer := strings.NewReplacer(append([]string{"{{TAG}}", k.tag}, replace...)...)
	k.must(t, time.Minute, replacer.Replace(string(text)), k.kubectl, "apply", "--filename", "-")
}

// collect keeps logs and objects after the first check that failed, before a
// later one deletes them.
func (k *cluster) collect(t *testing.T) {
	t.Helper()
	if k.collected {
		return
	}
	k.collected = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	out, err := k.run(ctx, "", filepath.Join(k.root, "e2e", "collect.sh"), k.output)
	t.Logf("logs and objects are in %s (%v)\n%s", k.output, err, out)
}

// until calls check every interval until it returns nil, and ends the check with
// its last error when limit is over.
func (k *cluster) until(t *testing.T, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	last := fmt.Errorf("not looked yet")
	for {
		err := check(ctx)
		if err == nil {
			k.say(t, "%s after %.1f s", what, time.Since(began).Seconds())
			return
		}
		// What a look says that the limit cut short is of no use.
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, limit, last)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// get reads an object of the cluster.
func (k *cluster) get(ctx context.Context, namespace, name string, object client.Object) error {
	return k.kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

// forward opens a tunnel from loopback to a port of a Service's pod, until the
// check ends, and returns its address.
func (k *cluster) forward(t *testing.T, namespace, target string, port int) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	command := exec.CommandContext(ctx, k.kubectl, "--namespace", namespace, "port-forward", "--address", "127.0.0.1", target, fmt.Sprintf(":%d", port))
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	address := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if m := forwarding.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case address <- m[1]:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		_ = command.Wait() // it was killed
	})
	select {
	case found := <-address:
		return found
	case <-read:
		t.Fatalf("kubectl port-forward %s %d ended: %s", target, port, problems.String())
	case <-time.After(20 * time.Second):
		t.Fatalf("kubectl port-forward %s %d: no tunnel within 20 s", target, port)
	}
	return ""
}

// dial connects to a gRPC server until the check ends.
func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// hostOf gives the host of host:port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
