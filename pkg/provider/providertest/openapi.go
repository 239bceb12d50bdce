package providertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// OpenAPI checks requests, and where asked replies, against a vendor's own description of its API. Its Transport goes
// between a driver and the cloud; what it finds is kept, and nothing that passes is changed. It may be used
// concurrently once its fields are set.
//
// Beyond the description's types it reports what a description does not mention: unknown paths, query parameters and
// top-level fields of a request's body. Known errors of the description are Exceptions.
type OpenAPI struct {
	doc *openapi3.T
	// Replies has replies checked too.
	Replies bool
	// Exceptions are the description's known errors.
	Exceptions []Exception

	mu       sync.Mutex
	findings []string
	used     map[int]bool
	checked  map[string]int
}

// Exception is one known error of a description, with the reason for which it is one.
type Exception struct {
	// Finding is how the finding begins: "PUT /api/v0/asks/{id}: request: env: …".
	Finding string
	// Contains is a part of the finding, where its beginning does not tell it from others.
	Contains string
	Reason   string
}

// LoadOpenAPI reads the description in a file. The error satisfies errors.Is(err, os.ErrNotExist) where there is none:
// descriptions are not part of this repository, so a test then skips with a message.
func LoadOpenAPI(file string) (*OpenAPI, error) {
	if _, err := os.Stat(file); err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &OpenAPI{doc: doc, used: map[int]bool{}, checked: map[string]int{}}, nil
}

// Findings are the departures from the description that are no Exception, each once.
func (o *OpenAPI) Findings() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.findings)
}

// Unused are the exceptions that nothing needed: a description that was mended, or a request no longer made.
func (o *OpenAPI) Unused() []Exception {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []Exception
	for i, e := range o.Exceptions {
		if !o.used[i] {
			out = append(out, e)
		}
	}
	return out
}

// Checked counts the requests that were checked, by "METHOD /path".
func (o *OpenAPI) Checked() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]int{}
	for k, v := range o.checked {
		out[k] = v
	}
	return out
}

// Transport checks what goes through it and passes it on to next.
func (o *OpenAPI) Transport(next http.RoundTripper) http.RoundTripper { return &checking{o, next} }

type checking struct {
	*OpenAPI
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o *checking) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := readAll(&r.Body)
	if err != nil {
		return nil, err
	}
	path, route, params := o.route(r)
	where := r.Method + " " + path
	o.count(where)
	if route == nil {
		o.find("%s: request: the description has no such call", where)
		return o.next.RoundTrip(r)
	}
	input := &openapi3filter.RequestValidationInput{
		Request: r.Clone(r.Context()), PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			MultiError: true, SkipSettingDefaults: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
		},
	}
	input.Request.Body = io.NopCloser(bytes.NewReader(body))
	o.report(where+": request", openapi3filter.ValidateRequest(context.WithoutCancel(r.Context()), input))
	o.undocumented(where, r, body, route)
	resp, err := o.next.RoundTrip(r)
	if err != nil || !o.Replies {
		return resp, err
	}
	return resp, o.reply(r.Context(), where, resp, input)
}

func (o *OpenAPI) reply(ctx context.Context, where string, resp *http.Response, in *openapi3filter.RequestValidationInput) error {
	body, err := readAll(&resp.Body)
	if err != nil {
		return err
	}
	o.report(fmt.Sprintf("%s: reply %d", where, resp.StatusCode),
		openapi3filter.ValidateResponse(context.WithoutCancel(ctx), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header,
			Body:    io.NopCloser(bytes.NewReader(body)),
			Options: &openapi3filter.Options{MultiError: true, IncludeResponseStatus: true},
		}))
	return nil
}

// readAll reads a body and puts it back.
func readAll(body *io.ReadCloser) ([]byte, error) {
	if *body == nil {
		return nil, nil
	}
	data, err := io.ReadAll(*body)
	*body = io.NopCloser(bytes.NewReader(data))
	return data, err
}

// route finds the described call. A trailing slash counts for nothing: descriptions leave it out.
func (o *OpenAPI) route(r *http.Request) (path string, route *routers.Route, params map[string]string) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	best := -1
	for template, item := range o.doc.Paths.Map() {
		op := item.GetOperation(r.Method)
		got, literal, ok := match(strings.Split(strings.Trim(template, "/"), "/"), parts)
		if !ok || op == nil || literal <= best {
			continue
		}
		best, path, params = literal, template, got
		route = &routers.Route{Spec: o.doc, Path: template, PathItem: item, Method: r.Method, Operation: op}
	}
	if route == nil {
		path = r.URL.Path
	}
	return path, route, params
}

// match compares a path with a template; literal counts the parts that are no parameter.
func match(template, path []string) (params map[string]string, literal int, ok bool) {
	if len(template) != len(path) {
		return nil, 0, false
	}
	params = map[string]string{}
	for i, t := range template {
		switch {
		case strings.HasPrefix(t, "{"):
			params[strings.Trim(t, "{}")] = path[i]
		case t == path[i]:
			literal++
		default:
			return nil, 0, false
		}
	}
	return params, literal, true
}

// undocumented reports what a strict server may refuse and a schema lets through.
func (o *OpenAPI) undocumented(where string, r *http.Request, body []byte, route *routers.Route) {
	for name := range r.URL.Query() {
		if route.Operation.Parameters.GetByInAndName("query", name) == nil &&
			route.PathItem.Parameters.GetByInAndName("query", name) == nil {
			o.find("%s: request: query parameter %s is not described", where, name)
		}
	}
	if len(body) == 0 {
		return
	}
	var fields map[string]json.RawMessage
	described := route.Operation.RequestBody
	if described == nil || described.Value == nil {
		o.find("%s: request: a body is not described", where)
		return
	}
	media := described.Value.Content.Get("application/json")
	if media == nil || media.Schema == nil || json.Unmarshal(body, &fields) != nil {
		return
	}
	for name := range fields {
		if !describes(media.Schema, name) {
			o.find("%s: request: field %s is not described", where, name)
		}
	}
}

// describes reports whether a schema, or one that it is composed of, has a property.
func describes(schema *openapi3.SchemaRef, name string) bool {
	if schema == nil || schema.Value == nil {
		return false
	}
	s := schema.Value
	return s.Properties[name] != nil || slices.ContainsFunc(slices.Concat(s.AllOf, s.AnyOf, s.OneOf),
		func(part *openapi3.SchemaRef) bool { return describes(part, name) })
}

// report takes an error of the validator apart.
func (o *OpenAPI) report(where string, err error) {
	if err == nil {
		return
	}
	var many openapi3.MultiError
	if errors.As(err, &many) {
		for _, e := range many {
			o.report(where, e)
		}
		return
	}
	var schema *openapi3.SchemaError
	if errors.As(err, &schema) {
		at := strings.Join(schema.JSONPointer(), ".")
		reason, _, _ := strings.Cut(schema.Reason, "\n")
		o.find("%s: %s: %s", where, at, reason)
		return
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	o.find("%s: %s", where, first)
}

func (o *OpenAPI) count(where string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.checked[where]++
}

func (o *OpenAPI) find(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	for i, e := range o.Exceptions {
		if strings.HasPrefix(text, e.Finding) && strings.Contains(text, e.Contains) {
			o.used[i] = true
			return
		}
	}
	if !slices.Contains(o.findings, text) {
		o.findings = append(o.findings, text)
	}
}
