// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package boundaries

import (
	"fmt"
	"strings"
)

// Package is what the check must know of one package: its full import path and
// its direct imports, those of its tests left out.
type Package struct {
	ImportPath string
	Imports    []string
}

// Check gives one message for each import that breaks a rule: who imports
// what, and why that is refused.
func Check(rules []Rule, packages []Package) []string {
	var broken []string
	for _, rule := range rules {
		for _, importer := range packages {
			if !matchesAny(rule.From, importer.ImportPath) || matchesAny(rule.Except, importer.ImportPath) {
				continue
			}
			for _, imported := range importer.Imports {
				if matchesAny(rule.Deny, imported) && !matchesAny(rule.Allow, imported) {
					broken = append(broken, fmt.Sprintf("%s imports %s, against the rule %q: %s",
						importer.ImportPath, imported, rule.Name, rule.Reason))
				}
			}
		}
	}
	return broken
}

// Unused gives the From patterns that match no package: a folder that was
// renamed or removed must not silently switch its rule off.
func Unused(rules []Rule, packages []Package) []string {
	var unused []string
	seen := map[string]bool{}
	for _, rule := range rules {
		for _, pattern := range rule.From {
			if seen[pattern] {
				continue
			}
			seen[pattern] = true
			found := false
			for _, p := range packages {
				found = found || matches(pattern, p.ImportPath)
			}
			if !found {
				unused = append(unused, fmt.Sprintf("the rule %q names %s, and no such package exists: correct the pattern if the folder moved", rule.Name, pattern))
			}
		}
	}
	return unused
}

func matchesAny(patterns []string, path string) bool {
	for _, pattern := range patterns {
		if matches(pattern, path) {
			return true
		}
	}
	return false
}

// matches reports whether an import path falls under a pattern (see Rule).
func matches(pattern, path string) bool {
	inModule := path == module || strings.HasPrefix(path, module+"/")
	standard := !inModule && !strings.Contains(firstElement(path), ".")
	switch {
	case pattern == "module":
		return inModule
	case pattern == "std":
		return standard
	case pattern == "libraries":
		return !inModule && !standard
	}
	if name, ok := strings.CutPrefix(pattern, "std:"); ok {
		return standard && under(name, path)
	}
	if strings.Contains(firstElement(pattern), ".") {
		return under(pattern, path)
	}
	return inModule && under(module+"/"+pattern, path)
}

// under reports whether path is the named package, or, if the name ends in
// "/...", that package or one below it.
func under(name, path string) bool {
	folder, below := strings.CutSuffix(name, "/...")
	return path == folder || below && strings.HasPrefix(path, folder+"/")
}

func firstElement(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}
