// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kolocate/kolocate/api/client"
	"github.com/kolocate/kolocate/services/keyspace"
)

func newKV() *cobra.Command {
	var connect connectFlags
	command := &cobra.Command{Use: "kv", Short: "Read and write keys", GroupID: groupUse}
	connect.add(command)
	command.AddCommand(newGet(&connect), newPut(&connect), newDelete(&connect), newScan(&connect), newTxn(&connect))
	return command
}

// withStore runs fn with a client of the store.
func (f *connectFlags) withStore(ctx context.Context, fn func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	store, err := client.Dial(ctx, client.Config{Target: f.address})
	if err != nil {
		return err
	}
	return errors.Join(fn(ctx, store), store.Close())
}

// entry is a key as it is printed.
type entry struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Version uint64 `json:"version"`
}

func newGet(connect *connectFlags) *cobra.Command {
	return &cobra.Command{
		Use: "get KEY", Short: "Print the value of a key", Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			return connect.withStore(command.Context(), func(ctx context.Context, store *client.Client) error {
				value, err := store.Get(ctx, []byte(arguments[0]))
				if err != nil {
					return err
				}
				if !value.Found {
					return fmt.Errorf("key %q does not exist", arguments[0])
				}
				return connect.printEntry(command.OutOrStdout(), entry{arguments[0], string(value.Data), value.Version}, false)
			})
		},
	}
}

func (f *connectFlags) printEntry(w io.Writer, e entry, withKey bool) (err error) {
	switch {
	case f.output == "json":
		err = json.NewEncoder(w).Encode(e)
	case withKey:
		_, err = fmt.Fprintf(w, "%s\t%s\n", e.Key, e.Value)
	default:
		_, err = fmt.Fprintln(w, e.Value)
	}
	return err
}

func newPut(connect *connectFlags) *cobra.Command {
	return &cobra.Command{
		Use: "put KEY VALUE", Short: "Write a key", Args: cobra.ExactArgs(2),
		RunE: func(command *cobra.Command, arguments []string) error {
			return connect.withStore(command.Context(), func(ctx context.Context, store *client.Client) error {
				version, err := store.Put(ctx, []byte(arguments[0]), []byte(arguments[1]))
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(command.OutOrStdout(), "version %d\n", version)
				return err
			})
		},
	}
}

func newDelete(connect *connectFlags) *cobra.Command {
	return &cobra.Command{
		Use: "delete KEY", Short: "Delete a key", Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			return connect.withStore(command.Context(), func(ctx context.Context, store *client.Client) error {
				existed, err := store.Delete(ctx, []byte(arguments[0]))
				if err != nil {
					return err
				}
				answer := "deleted"
				if !existed {
					answer = "was not there"
				}
				_, err = fmt.Fprintln(command.OutOrStdout(), answer)
				return err
			})
		},
	}
}

func newScan(connect *connectFlags) *cobra.Command {
	options := client.ScanOptions{}
	var end string
	var limit int
	command := &cobra.Command{
		Use: "scan [START]", Short: "Print keys in byte order, from a start on, over all shards", Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) > 0 {
				options.Start = []byte(arguments[0])
			}
			options.End = []byte(end)
			return connect.withStore(command.Context(), func(ctx context.Context, store *client.Client) error {
				left := limit
				options.PageEntries = min(limit, keyspace.DefaultScanEntries)
				for found, err := range store.Scan(ctx, options) {
					if err != nil {
						return err
					}
					if left--; left < 0 {
						return nil
					}
					if err := connect.printEntry(command.OutOrStdout(), entry{string(found.Key), string(found.Value), found.Version}, true); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	command.Flags().StringVar(&end, "end", "", "first key that is not printed (default: to the last)")
	command.Flags().IntVar(&limit, "limit", 100, "most keys that are printed")
	return command
}

// txnFlags are the parts of a transaction.
type txnFlags struct {
	ifAbsent, ifExists, ifEqual        []string
	get, put, deleted, increment, keys []string
	elseGet                            []string
}

func newTxn(connect *connectFlags) *cobra.Command {
	var parts txnFlags
	command := &cobra.Command{
		Use:   "txn",
		Short: "Run several operations on several keys at once, if conditions hold",
		Example: "  kolocate kv txn --if-absent '{bob}name' --put '{bob}name=Bob' --increment '{alice}friends=1'\n" +
			"  kolocate kv txn --if-equal '{bob}name=Bob' --delete '{bob}name' --else-get '{bob}name'",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			conditions, err := parts.conditions()
			if err != nil {
				return err
			}
			then, err := parts.then()
			if err != nil {
				return err
			}
			var otherwise []client.Operation
			for _, key := range parts.elseGet {
				otherwise = append(otherwise, client.Get([]byte(key)))
			}
			return connect.withStore(command.Context(), func(ctx context.Context, store *client.Client) error {
				result, err := store.Txn(parts.declared()...).If(conditions...).Then(then...).Else(otherwise...).Commit(ctx)
				if err != nil {
					return err
				}
				return printTxn(command.OutOrStdout(), result)
			})
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&parts.keys, "key", nil, "declare a further key")
	flags.StringArrayVar(&parts.ifAbsent, "if-absent", nil, "condition: KEY does not exist")
	flags.StringArrayVar(&parts.ifExists, "if-exists", nil, "condition: KEY exists")
	flags.StringArrayVar(&parts.ifEqual, "if-equal", nil, "condition: KEY=VALUE")
	flags.StringArrayVar(&parts.get, "get", nil, "then read KEY")
	flags.StringArrayVar(&parts.put, "put", nil, "then write KEY=VALUE")
	flags.StringArrayVar(&parts.deleted, "delete", nil, "then delete KEY")
	flags.StringArrayVar(&parts.increment, "increment", nil, "then add to the number in a key: KEY=DELTA")
	flags.StringArrayVar(&parts.elseGet, "else-get", nil, "else read KEY")
	return command
}

// split cuts KEY=VALUE at the first equals sign behind the key's braces.
func split(flag, text string) (key, value string, err error) {
	from := max(0, strings.LastIndexByte(text, '}'))
	at := strings.IndexByte(text[from:], '=')
	if at < 0 {
		if key, value, ok := strings.Cut(text, "="); ok {
			return key, value, nil
		}
		return "", "", fmt.Errorf("read --%s %q: expected KEY=VALUE", flag, text)
	}
	return text[:from+at], text[from+at+1:], nil
}

func (p *txnFlags) conditions() (conditions []client.Condition, err error) {
	for _, key := range p.ifAbsent {
		conditions = append(conditions, client.Absent([]byte(key)))
	}
	for _, key := range p.ifExists {
		conditions = append(conditions, client.Exists([]byte(key)))
	}
	for _, text := range p.ifEqual {
		key, value, err := split("if-equal", text)
		if err != nil {
			return nil, err
		}
		conditions = append(conditions, client.ValueEqual([]byte(key), []byte(value)))
	}
	return conditions, nil
}

func (p *txnFlags) then() (operations []client.Operation, err error) {
	for _, key := range p.get {
		operations = append(operations, client.Get([]byte(key)))
	}
	for _, text := range p.put {
		key, value, err := split("put", text)
		if err != nil {
			return nil, err
		}
		operations = append(operations, client.Put([]byte(key), []byte(value)))
	}
	for _, key := range p.deleted {
		operations = append(operations, client.Delete([]byte(key)))
	}
	for _, text := range p.increment {
		key, value, err := split("increment", text)
		if err != nil {
			return nil, err
		}
		delta, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read --increment %q: expected KEY=DELTA with a whole number", text)
		}
		operations = append(operations, client.Increment([]byte(key), delta))
	}
	return operations, nil
}

// declared returns every key that the flags name.
func (p *txnFlags) declared() (keys [][]byte) {
	for _, list := range [][]string{p.keys, p.ifAbsent, p.ifExists, p.get, p.deleted, p.elseGet} {
		for _, key := range list {
			keys = append(keys, []byte(key))
		}
	}
	for _, list := range [][]string{p.ifEqual, p.put, p.increment} {
		for _, text := range list {
			if key, _, err := split("", text); err == nil {
				keys = append(keys, []byte(key))
			}
		}
	}
	return keys
}

func printTxn(w io.Writer, result client.TxnResult) error {
	answer := "conditions held"
	if !result.Succeeded {
		answer = "conditions did not hold"
	}
	if _, err := fmt.Fprintln(w, answer); err != nil {
		return err
	}
	for _, r := range result.Results {
		if err := printResult(w, r); err != nil {
			return err
		}
	}
	return nil
}

func printResult(w io.Writer, r client.OperationResult) (err error) {
	switch {
	case r.Number != 0:
		_, err = fmt.Fprintf(w, "%d\n", r.Number)
	case len(r.Value.Data) > 0:
		_, err = fmt.Fprintf(w, "%s\n", r.Value.Data)
	default:
		_, err = fmt.Fprintf(w, "found %v, version %d\n", r.Value.Found, r.Value.Version)
	}
	return err
}
