// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package boundaries

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

type listed struct {
	Package
	Dir      string
	GoFiles  []string
	CgoFiles []string
}

// list asks the go command for the packages of this module. A package that
// does not compile is listed too: the compiler reports it better.
func list(t *testing.T) []listed {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,Dir,GoFiles,CgoFiles", "./...")
	command.Dir = filepath.Join("..", "..")
	var complaints bytes.Buffer
	command.Stderr = &complaints
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, complaints.String())
	}
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("reading the output of go list: %v", err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 10 {
		t.Fatalf("go list found %d packages: expected the whole module", len(packages))
	}
	return packages
}

func importsOf(packages []listed) []Package {
	var plain []Package
	for _, p := range packages {
		plain = append(plain, p.Package)
	}
	return plain
}

func TestImports(t *testing.T) {
	t.Parallel()
	packages := importsOf(list(t))
	for _, message := range Check(Rules(), packages) {
		t.Error(message)
	}
	for _, message := range Unused(Rules(), packages) {
		t.Error(message)
	}
}

func TestSources(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		isPure := matchesAny(pure, p.ImportPath)
		isDeterministic := matchesAny(deterministic, p.ImportPath)
		if !isPure && !isDeterministic {
			continue
		}
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("parsing %s of %s: %v", name, p.ImportPath, err)
				continue
			}
			for _, message := range CheckCalls(files, file) {
				t.Error(message)
			}
			if isDeterministic {
				for _, message := range CheckConcurrency(files, file) {
					t.Error(message)
				}
			}
		}
	}
}

// TestRulesCatch shows for each rule an import that it refuses and one beside
// it that it lets pass.
func TestRulesCatch(t *testing.T) {
	t.Parallel()
	cases := []struct {
		rule, from, refused, allowed string
	}{
		{"vocabulary", "services/keyspace", "google.golang.org/protobuf/proto", "sort"},
		{"pure packages import no adapter", "services/shard/core", "google.golang.org/grpc", "google.golang.org/protobuf/proto"},
		{"pure packages import no adapter", "services/edge/translate", "net/http", "net"},
		{"pure packages import pure packages", "services/oracle/graph", module + "/services/replica", module + "/services/keyspace"},
		{"replicated state is deterministic", "services/shard/core", "sync/atomic", "time"},
		{"replicated state is deterministic", "services/oracle/directory", "math/rand/v2", "math/bits"},
		{"the API stands alone", "api/client", module + "/services/trace", module + "/services/keyspace"},
		{"controllers import no server", "controllers/store", module + "/services/oracle/serve", module + "/api/proto/oracle/v1"},
		{"no Kubernetes outside the operator", "services/oracle/serve", "k8s.io/client-go/rest", "google.golang.org/grpc"},
		{"one Raft host", "services/shard/serve", "go.etcd.io/raft/v3", module + "/services/replica"},
		{"xDS stays in the edge", "services/oracle/serve", "github.com/envoyproxy/go-control-plane/envoy/config/core/v3", module + "/services/edge/ir"},
		{"KaHIP is linked by one program", "services/oracle/serve", module + "/services/partitioner/kahip", module + "/services/partitioner/plan"},
		{"cgo stays with KaHIP", "services/cmd/kolocate", "C", "unsafe"},
		{"no test code in programs", "services/shard/serve", "testing", "errors"},
		{"shared parts lie below the stages", "services/replica", module + "/services/shard/core", module + "/api/proto/replica/v1"},
		{"programs are at the top", "services/bench", module + "/services/cmd/kolocate", module + "/api/client"},
		{"one stage does not wire another", "services/oracle/serve", module + "/services/edge/serve", module + "/services/edge/ir"},
		{"one stage does not wire another", "services/shard/serve", module + "/services/oracle/serve", module + "/services/trace"},
	}
	covered := map[string]bool{}
	for _, c := range cases {
		covered[c.rule] = true
		messages := Check(Rules(), []Package{{ImportPath: module + "/" + c.from, Imports: []string{c.refused, c.allowed}}})
		found := false
		for _, message := range messages {
			if strings.Contains(message, " imports "+c.allowed+",") {
				t.Errorf("%s may import %s, and the check says: %s", c.from, c.allowed, message)
			}
			found = found || strings.Contains(message, " imports "+c.refused+",") && strings.Contains(message, c.rule)
		}
		if !found {
			t.Errorf("rule %q let %s import %s", c.rule, c.from, c.refused)
		}
	}
	for _, rule := range Rules() {
		if !covered[rule.Name] {
			t.Errorf("rule %q has no case here", rule.Name)
		}
		if rule.Reason == "" {
			t.Errorf("rule %q gives no reason", rule.Name)
		}
	}
}

func TestSourceChecksCatch(t *testing.T) {
	t.Parallel()
	const source = `package core

import (
	"net"
	clock "time"
)

func f(now clock.Time, done chan int) clock.Duration {
	go f(now, nil)
	select {}
	done <- 1
	_ = clock.Now()
	_, _ = net.Dial("tcp", net.JoinHostPort("a", "1"))
	return now.Sub(now) + clock.Second
}
`
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "core.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	checks := []struct {
		name  string
		check func(*token.FileSet, *ast.File) []string
		want  []string
	}{
		{"calls", CheckCalls, []string{"core.go:12:6: time.Now", "core.go:13:9: net.Dial"}},
		{"concurrency", CheckConcurrency, []string{"core.go:8:29: a channel", "core.go:9:2: a go statement", "core.go:10:2: a select", "core.go:11:2: a send"}},
	}
	for _, c := range checks {
		got := c.check(files, file)
		if len(got) != len(c.want) {
			t.Errorf("%s: got %q, want one message each for %q", c.name, got, c.want)
			continue
		}
		for i, want := range c.want {
			if !strings.HasPrefix(got[i], want) {
				t.Errorf("%s: got %q, want it to start with %q", c.name, got[i], want)
			}
		}
	}
}
