// Package crd holds the definitions of gpuscale's two kinds, generated from the API types, for programs that install
// them.
package crd

import "embed"

// Files are the definitions, one YAML document in each file.
//
//go:embed *.yaml
var Files embed.FS
