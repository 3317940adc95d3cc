// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDashboardsAndAlertsOfTheChart is what make verify counts on.
func TestDashboardsAndAlertsOfTheChart(t *testing.T) {
	chart := filepath.Join("..", "..", "charts", "kolocate")
	var out, errs bytes.Buffer
	if status := run([]string{filepath.Join(chart, "dashboards"), filepath.Join(chart, "files", "alerts.yaml")}, &out, &errs); status != 0 {
		t.Fatalf("status %d:\n%s", status, errs.String())
	}
}

func TestBadQueriesAreNamed(t *testing.T) {
	for name, test := range map[string]struct{ expr, want string }{
		"syntax":   {`sum(rate(x[1m])`, "unclosed left parenthesis"},
		"variable": {`x{pod="$pod"}`, "a variable in it is unknown"},
		"type":     {`rate(x)`, "expected type range vector"},
	} {
		t.Run(name, func(t *testing.T) {
			file := dashboard(t, test.expr)
			var out, errs bytes.Buffer
			status := run([]string{file}, &out, &errs)
			if status != 1 || !strings.Contains(errs.String(), test.want) || !strings.Contains(errs.String(), "panel Load") {
				t.Errorf("status %d, want 1 and %q for panel Load:\n%s", status, test.want, errs.String())
			}
		})
	}
}

func TestAPanelWithoutDataIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		answer string
		status int
		want   string
	}{
		"data":    {`{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,"NaN"],[2,"3"]]}]}}`, 0, ""},
		"nothing": {`{"status":"success","data":{"resultType":"matrix","result":[]}}`, 1, "no data in the last 15m0s"},
		"NaN":     {`{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,"NaN"]]}]}}`, 1, "no data"},
		"refused": {`{"status":"error","error":"too many samples"}`, 1, "too many samples"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.FormValue("query")
				_, _ = w.Write([]byte(test.answer)) // the client sees what is missing
			}))
			defer server.Close()
			var out, errs bytes.Buffer
			status := run([]string{"--url", server.URL, "--namespace", "ns", "--store", "kv", dashboard(t, `up{namespace="$namespace",store="$store"}`)}, &out, &errs)
			if status != test.status || !strings.Contains(errs.String(), test.want) {
				t.Errorf("status %d, want %d and %q:\n%s", status, test.status, test.want, errs.String())
			}
			if want := `up{namespace="ns",store="kv"}`; asked != want {
				t.Errorf("asked %s, want %s", asked, want)
			}
		})
	}
}

func dashboard(t *testing.T, expr string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "board.json")
	text := `{"title":"Board","panels":[{"title":"Load","type":"timeseries","targets":[{"expr":` + quote(expr) + `}]}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func quote(text string) string { return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"` }
