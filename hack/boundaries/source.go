// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package boundaries

import (
	"fmt"
	"go/ast"
	"go/token"
	"strconv"
)

// clockFunctions are the functions of package time that read or wait for the
// clock. The package's types and arithmetic are pure.
var clockFunctions = map[string]bool{
	"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true,
	"AfterFunc": true, "Tick": true, "NewTimer": true, "NewTicker": true,
}

// addressFunctions are the functions of package net that only work on text.
var addressFunctions = map[string]bool{
	"SplitHostPort": true, "JoinHostPort": true, "ParseIP": true, "ParseCIDR": true,
}

// CheckCalls gives one message for each place in a pure package that reads the
// clock or uses more of package net than its functions on text.
func CheckCalls(files *token.FileSet, file *ast.File) []string {
	clock, network := importName(file, "time"), importName(file, "net")
	var broken []string
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		base, ok := selector.X.(*ast.Ident)
		if !ok || base.Name == "" {
			return true
		}
		switch name := selector.Sel.Name; {
		case base.Name == clock && clockFunctions[name]:
			broken = append(broken, fmt.Sprintf("%s: time.%s reads the clock: a pure package gets the time as a parameter, so that tests and the simulator own it",
				files.Position(node.Pos()), name))
		case base.Name == network && !addressFunctions[name]:
			broken = append(broken, fmt.Sprintf("%s: net.%s may reach the network: a pure package uses only the functions of net that work on text",
				files.Position(node.Pos()), name))
		}
		return true
	})
	return broken
}

// CheckConcurrency gives one message for each place in a replicated state
// machine that starts a goroutine or uses a channel.
func CheckConcurrency(files *token.FileSet, file *ast.File) []string {
	const reason = "the order in which goroutines run differs between replicas; the state machine is driven by one goroutine from outside"
	var broken []string
	ast.Inspect(file, func(node ast.Node) bool {
		what := ""
		switch node.(type) {
		case *ast.GoStmt:
			what = "a go statement"
		case *ast.SelectStmt:
			what = "a select statement"
		case *ast.ChanType:
			what = "a channel"
		case *ast.SendStmt:
			what = "a send on a channel"
		}
		if what != "" {
			broken = append(broken, fmt.Sprintf("%s: %s in a replicated state machine: %s", files.Position(node.Pos()), what, reason))
		}
		return true
	})
	return broken
}

// importName gives the name a file uses for an imported package, or "" if it
// does not import it.
func importName(file *ast.File, path string) string {
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil || imported != path {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path
	}
	return ""
}
