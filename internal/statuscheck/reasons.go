package statuscheck

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/munhq/gpuscale/internal/localkube"
)

// The closed lists are the constants of the API package, by what they are for.
var (
	claimReasons = sync.OnceValue(func() []string { return constants("reasons.go", "Reasons of a claim's") })
	poolReasons  = sync.OnceValue(func() []string { return constants("reasons.go", "Reasons of a pool's") })
	podReasons   = sync.OnceValue(func() []string { return constants("constants.go", "Reasons of PodConditionServed") })
)

// constants are the values of the block of string constants whose comment begins so. It panics where the API package has
// none: a list that is not found would allow anything or nothing.
func constants(file, comment string) []string {
	root, err := localkube.ModuleRoot()
	if err != nil {
		panic(err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "api", "v1alpha1", file), nil, parser.ParseComments)
	if err != nil {
		panic(err)
	}
	var out []string
	for _, d := range parsed.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST || !strings.HasPrefix(block.Doc.Text(), comment) {
			continue
		}
		ast.Inspect(block, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, err := strconv.Unquote(literal.Value)
				if err != nil {
					panic(err)
				}
				out = append(out, text)
			}
			return true
		})
	}
	if len(out) == 0 {
		panic(fmt.Sprintf("no constants %q in api/v1alpha1/%s", comment, file))
	}
	return out
}
