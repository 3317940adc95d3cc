// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kolocate/kolocate/api/client"
	kvv1 "github.com/kolocate/kolocate/api/proto/kv/v1"
)

func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, client.Config{Target: "localhost:8080"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if _, err := c.Put(ctx, []byte("{user/17}/name"), []byte("Ada")); err != nil {
		fmt.Println(err)
		return
	}
	name, err := c.Get(ctx, []byte("{user/17}/name"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", name.Data)
}

// A transfer between two accounts, wherever they live: both balances change or neither.
func ExampleClient_Txn() {
	transfer := func(ctx context.Context, c *client.Client, from, to []byte, seen []byte, amount int64) error {
		r, err := c.Txn(from, to).
			If(client.ValueEqual(from, seen)).
			Then(client.Increment(from, -amount), client.Increment(to, amount)).
			Commit(ctx)
		switch {
		case errors.Is(err, client.Unknown):
			return fmt.Errorf("read the balances to learn whether the transfer ran: %w", err)
		case err != nil:
			return err
		case !r.Succeeded:
			return errors.New("the balance has changed: read it and try again")
		}
		return nil
	}
	_ = transfer
}

// Many commands under way from one goroutine.
func ExampleClient_Start() {
	load := func(ctx context.Context, c *client.Client, keys [][]byte) error {
		pending := make([]*client.Pending, 0, len(keys))
		for _, key := range keys {
			pending = append(pending, c.Start(ctx, &kvv1.Command{
				Keys:    [][]byte{key},
				ThenOps: []*kvv1.Op{{Kind: kvv1.OpKind_OP_KIND_PUT, Value: []byte("loaded")}},
			}))
		}
		for _, p := range pending {
			if _, err := p.Wait(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	_ = load
}

func ExampleClient_ScanVertex() {
	list := func(ctx context.Context, c *client.Client) error {
		for entry, err := range c.ScanVertex(ctx, "user/17", client.ScanOptions{}) {
			if err != nil {
				return err
			}
			fmt.Printf("%s = %s\n", entry.Key, entry.Value)
		}
		return nil
	}
	_ = list
}
