// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// query is one expression, and where it stands.
type query struct {
	file, panel, expr string
	// live says whether a running store must give data for it: panels yes,
	// alerts no.
	live bool
}

func (q query) String() string {
	return fmt.Sprintf("%s: %s: %s", filepath.Base(q.file), q.panel, q.expr)
}

// read gives all queries of dashboards (*.json) and rule files (*.yaml) in the
// order of the files' names. A folder stands for the files in it.
func read(paths []string) ([]query, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		for _, pattern := range []string{"*.json", "*.yaml"} {
			found, err := filepath.Glob(filepath.Join(path, pattern))
			if err != nil {
				return nil, fmt.Errorf("listing %s: %w", path, err)
			}
			files = append(files, found...)
		}
	}
	slices.Sort(files)
	var all []query
	for _, file := range files {
		queries, err := readFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, queries...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no query in %q: expected dashboards (*.json) or rule files (*.yaml)", paths)
	}
	return all, nil
}

func readFile(file string) ([]query, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	if filepath.Ext(file) == ".json" {
		return readDashboard(file, text)
	}
	return readRules(file, text)
}

type panel struct {
	Title   string
	Type    string
	Targets []struct{ Expr string }
	Panels  []panel
}

func readDashboard(file string, text []byte) ([]query, error) {
	var board struct {
		Title       string
		Panels      []panel
		Annotations struct{ List []struct{ Name, Expr string } }
	}
	if err := json.Unmarshal(text, &board); err != nil {
		return nil, fmt.Errorf("reading dashboard %s: %w", file, err)
	}
	if board.Title == "" || len(board.Panels) == 0 {
		return nil, fmt.Errorf("reading dashboard %s: it has no title or no panel", file)
	}
	var queries []query
	for _, a := range board.Annotations.List {
		if a.Expr != "" {
			queries = append(queries, query{file, "annotation " + a.Name, a.Expr, false})
		}
	}
	var walk func([]panel) error
	walk = func(panels []panel) error {
		for _, p := range panels {
			if p.Type != "row" && len(p.Targets) == 0 {
				return fmt.Errorf("reading dashboard %s: panel %q has no query", file, p.Title)
			}
			for _, target := range p.Targets {
				queries = append(queries, query{file, "panel " + p.Title, target.Expr, true})
			}
			if err := walk(p.Panels); err != nil {
				return err
			}
		}
		return nil
	}
	return queries, walk(board.Panels)
}

func readRules(file string, text []byte) ([]query, error) {
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		return nil, fmt.Errorf("reading rules %s: %w", file, err)
	}
	var queries []query
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			queries = append(queries, query{file, "rule " + rule.Alert + rule.Record, rule.Expr, false})
		}
	}
	return queries, nil
}

// variables replaces what Grafana would: its own variables and those that the
// dashboards define.
func variables(namespace, store, interval, span string) *strings.Replacer {
	return strings.NewReplacer(
		"${namespace}", namespace, "$namespace", namespace,
		"${store}", store, "$store", store,
		"$__rate_interval", interval, "$__interval", interval, "$__range", span,
	)
}

// check gives an error for each query that Prometheus would not accept.
func check(queries []query, replace *strings.Replacer) error {
	var errs []error
	for _, q := range queries {
		expr := replace.Replace(q.expr)
		if strings.Contains(expr, "$") {
			errs = append(errs, fmt.Errorf("%s: a variable in it is unknown: expected $namespace, $store, $__rate_interval, $__interval or $__range", q))
			continue
		}
		if _, err := parser.NewParser(parser.Options{}).ParseExpr(expr); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", q, err))
		}
	}
	return errors.Join(errs...)
}
