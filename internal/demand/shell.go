package demand

import (
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// lookup finds a variable whose value stands in the pod itself.
type lookup func(name string) (string, bool)

// literals looks among the variables of c that have their value in the pod. Those that come from elsewhere are not read:
// what a Secret or ConfigMap says is not the template's.
func literals(c *corev1.Container) lookup {
	return func(name string) (string, bool) {
		for _, e := range slices.Backward(c.Env) {
			if e.Name == name && e.ValueFrom == nil {
				return e.Value, true
			}
		}
		return "", false
	}
}

var kubeReference = regexp.MustCompile(`\$\$|\$\([A-Za-z_.-][A-Za-z0-9_.-]*\)`)

// expandKube replaces $(NAME) as the kubelet does. What it cannot replace stays, and is found by unresolved.
func expandKube(word string, env lookup) string {
	return kubeReference.ReplaceAllStringFunc(word, func(ref string) string {
		if ref == "$$" {
			return "$"
		}
		if v, ok := env(ref[2 : len(ref)-1]); ok {
			return v
		}
		return ref
	})
}

var reference = regexp.MustCompile("\\$[({]?[A-Za-z_][A-Za-z0-9_.-]*[)}]?|`")

// unresolved returns the first reference to a variable, or command substitution, left in word.
func unresolved(word string) string { return reference.FindString(word) }

var shells = []string{"sh", "bash", "ash", "dash", "zsh"}

// commands returns the simple commands of a container's command line: one, or those of the script that a shell in it is
// given.
func commands(words []string, env lookup) [][]string {
	shell := slices.IndexFunc(words, func(w string) bool { return slices.Contains(shells, path.Base(w)) })
	if shell < 0 {
		return [][]string{words}
	}
	for i := shell + 1; i+1 < len(words); i++ {
		if w := words[i]; strings.HasPrefix(w, "-") && !strings.HasPrefix(w, "--") && strings.HasSuffix(w, "c") {
			return splitScript(words[i+1], env)
		}
	}
	return [][]string{words}
}

// splitScript splits a shell script into simple commands and their words, with quotes, escapes, comments, redirections
// and plain variables. It is no shell: loops and substitutions come out as words that nobody takes for an engine.
func splitScript(script string, env lookup) [][]string {
	s := splitter{in: []rune(script), env: env}
	for s.pos < len(s.in) {
		s.step()
	}
	s.endCommand()
	return s.out
}

type splitter struct {
	in   []rune
	pos  int
	env  lookup
	word strings.Builder
	// open: a word has begun, though it may be empty (""). skip: the next word is a redirection's target.
	open, skip bool
	words      []string
	out        [][]string
}

func (s *splitter) step() {
	r := s.in[s.pos]
	s.pos++
	switch {
	case r == '\\':
		s.escape()
	case r == '\'':
		s.open = true
		for s.pos < len(s.in) && s.in[s.pos] != '\'' {
			s.word.WriteRune(s.in[s.pos])
			s.pos++
		}
		s.pos++
	case r == '"':
		s.doubleQuoted()
	case r == '$':
		s.open = true
		s.variable()
	case r == '#' && !s.open:
		for s.pos < len(s.in) && s.in[s.pos] != '\n' {
			s.pos++
		}
	case r == '>' || r == '<':
		s.redirect()
	case r == ' ' || r == '\t' || r == '\r':
		s.endWord()
	case strings.ContainsRune("\n;&|()", r):
		s.endCommand()
	default:
		s.open = true
		s.word.WriteRune(r)
	}
}

func (s *splitter) escape() {
	if s.pos >= len(s.in) {
		return
	}
	r := s.in[s.pos]
	s.pos++
	if r != '\n' {
		s.open = true
		s.word.WriteRune(r)
	}
}

func (s *splitter) doubleQuoted() {
	s.open = true
	for s.pos < len(s.in) && s.in[s.pos] != '"' {
		r := s.in[s.pos]
		s.pos++
		switch {
		case r == '\\' && s.pos < len(s.in) && strings.ContainsRune("\"\\$`\n", s.in[s.pos]):
			s.escape()
		case r == '$':
			s.variable()
		default:
			s.word.WriteRune(r)
		}
	}
	s.pos++
}

var shellReference = regexp.MustCompile(`^(?:\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^{}$]*))?\}|([A-Za-z_][A-Za-z0-9_]*))`)

// variable reads what follows a '$'. A variable that the pod does not give, and that has no default, is left as written.
func (s *splitter) variable() {
	m := shellReference.FindStringSubmatch(string(s.in[s.pos:]))
	if m == nil {
		s.word.WriteRune('$')
		return
	}
	s.pos += len([]rune(m[0]))
	value, ok := s.env(m[1] + m[3])
	switch {
	case ok:
		s.word.WriteString(value)
	case strings.Contains(m[0], "-"):
		s.word.WriteString(m[2])
	default:
		s.word.WriteString("$" + m[0])
	}
}

// redirect drops the file descriptor before the sign and the target after it.
func (s *splitter) redirect() {
	if strings.Trim(s.word.String(), "0123456789") == "" {
		s.word.Reset()
		s.open = false
	}
	s.endWord()
	for s.pos < len(s.in) && (s.in[s.pos] == '>' || s.in[s.pos] == '&') {
		s.pos++
	}
	s.skip = true
}

func (s *splitter) endWord() {
	if s.open && !s.skip {
		s.words = append(s.words, s.word.String())
	}
	if s.open {
		s.skip = false
	}
	s.word.Reset()
	s.open = false
}

func (s *splitter) endCommand() {
	s.endWord()
	s.skip = false
	if len(s.words) > 0 {
		s.out = append(s.out, s.words)
	}
	s.words = nil
}
