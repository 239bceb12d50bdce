package internal

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func TestMarkdownLinks(t *testing.T) {
	for _, offence := range checkLinks(t, os.DirFS("..")) {
		t.Error(offence)
	}
}

func TestMarkdownLinksCatchOffences(t *testing.T) {
	for text, want := range map[string]string{
		"[a](gone.md)":                "gone.md",
		"![a](gone.png)":              "gone.png",
		"[a](gone.md#there)":          "gone.md",
		"[a](there.md \"t\") [b](x)":  "x",
		"[a]: gone.md":                "gone.md",
		"[a](../../outside.md)":       "outside",
		"[a](/gone.md)":               "/gone.md",
		"[a](<with space.md>)":        "with space.md",
		"[a](there.md)":               "",
		"[a](there.md#anywhere)":      "",
		"[a](../README.md)":           "",
		"[a](/README.md)":             "",
		"[a](../docs)":                "",
		"[a](th%65re.md)":             "",
		"[a](#here)":                  "",
		"[a](https://example.com/x)":  "",
		"[a](mailto:a@example.com)":   "",
		"`[a](gone.md)`":              "",
		"```\n[a](gone.md)\n```\n":    "",
		"~~~md\n[a](gone.md)\n~~~":    "",
		"x[0](not.alink) but matches": "not.alink",
	} {
		got := checkLinks(t, fstest.MapFS{
			"README.md": {Data: []byte("[d](docs/page.md)")}, "docs/there.md": {}, "docs/page.md": {Data: []byte(text)},
			"elsewhere/x.md": {Data: []byte("[a](gone.md)")},
		})
		if want == "" && len(got) != 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%q: %q; want %q", text, got, want)
		}
	}
}

var (
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	linkTarget = regexp.MustCompile(`\]\(\s*(?:<([^>\n]*)>|([^)\s]+))|(?m:^ {0,3}\[[^\]\n]+\]:\s*(\S+))`)
	urlScheme  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*:`)
)

// checkLinks follows the relative links of the Markdown files at the root and under docs.
func checkLinks(t *testing.T, root fs.FS) []string {
	t.Helper()
	names, err := fs.Glob(root, "*.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(root, "docs"); err == nil {
		err = fs.WalkDir(root, "docs", func(name string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && strings.HasSuffix(name, ".md") {
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var out []string
	for _, name := range names {
		data, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range linkTargets(string(data)) {
			if !resolves(root, name, target) {
				out = append(out, fmt.Sprintf("%s: link to %s, which is not there", name, target))
			}
		}
	}
	return out
}

func linkTargets(text string) []string {
	var out []string
	for _, m := range linkTarget.FindAllStringSubmatch(inlineCode.ReplaceAllString(withoutFences(text), ""), -1) {
		if target := m[1] + m[2] + m[3]; !urlScheme.MatchString(target) && !strings.HasPrefix(target, "#") {
			out = append(out, target)
		}
	}
	return out
}

func withoutFences(text string) string {
	var out strings.Builder
	fence := ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence == "" && (strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")):
			fence = trimmed[:3]
		case fence != "" && strings.HasPrefix(trimmed, fence):
			fence = ""
		case fence == "":
			out.WriteString(line)
		}
	}
	return out.String()
}

// resolves reports whether a link leads to a file or folder inside root. A leading slash is the root, as on GitHub.
func resolves(root fs.FS, from, target string) bool {
	target, _, _ = strings.Cut(target, "#")
	target, err := url.PathUnescape(target)
	if err != nil {
		return false
	}
	full := path.Join(path.Dir(from), target)
	if strings.HasPrefix(target, "/") {
		full = path.Join(".", target[1:])
	}
	_, err = fs.Stat(root, full)
	return err == nil
}
