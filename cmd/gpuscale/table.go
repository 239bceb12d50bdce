package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// table is rows under headers, spaced as kubectl spaces them.
type table struct {
	headers []string
	rows    [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer, noHeaders bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	if !noHeaders {
		_, _ = fmt.Fprintln(tw, strings.Join(t.headers, "\t"))
	}
	for _, r := range t.rows {
		for i, cell := range r {
			if cell == "" {
				r[i] = none
			}
		}
		_, _ = fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush() // it has the first error of all the writes
}

// none stands for what a provider did not say, as in kubectl's tables.
const none = "<none>"

// document writes v as JSON or YAML.
func document(w io.Writer, format string, v any) error {
	text, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return err
	}
	if format == "yaml" {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
	} else {
		text = append(text, '\n')
	}
	_, err = w.Write(text)
	return err
}
