// Copyright The Kolocate Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxAnswer bounds the answer of Prometheus to one query, in bytes.
const maxAnswer = 64 << 20

// server is a running Prometheus.
type server struct {
	url        string
	span, step time.Duration
	client     *http.Client
}

// check gives an error for each query for which Prometheus holds no number in
// the time span that ends now. All are asked, so that one run shows everything.
func (s server) check(ctx context.Context, queries []query, replace *strings.Replacer) error {
	var errs []error
	for _, q := range queries {
		if !q.live {
			continue
		}
		numbers, err := s.ask(ctx, replace.Replace(q.expr))
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", q, err))
		case numbers == 0:
			errs = append(errs, fmt.Errorf("%s: no data in the last %s", q, s.span))
		}
	}
	return errors.Join(errs...)
}

// ask gives how many numbers (not NaN) a range query returns.
func (s server) ask(ctx context.Context, expr string) (int, error) {
	now := time.Now()
	form := url.Values{
		"query": {expr},
		"start": {strconv.FormatInt(now.Add(-s.span).Unix(), 10)},
		"end":   {strconv.FormatInt(now.Unix(), 10)},
		"step":  {strconv.FormatFloat(s.step.Seconds(), 'f', -1, 64)},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.url, "/")+"/api/v1/query_range", strings.NewReader(form.Encode()))
	if err != nil {
		return 0, fmt.Errorf("asking Prometheus: %w", err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := s.client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("asking Prometheus: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // read to its end, or given up
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Values [][2]any }
		}
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&answer); err != nil {
		return 0, fmt.Errorf("reading the answer of Prometheus (%s): %w", response.Status, err)
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("prometheus refuses it (%s): %s", response.Status, answer.Error)
	}
	numbers := 0
	for _, series := range answer.Data.Result {
		for _, value := range series.Values {
			if value[1] != "NaN" {
				numbers++
			}
		}
	}
	return numbers, nil
}
