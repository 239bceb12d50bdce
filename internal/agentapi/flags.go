package agentapi

import "strings"

// Arity is what follows a flag of an engine's command line.
type Arity int

// Arities: nothing, one value, or any number of them.
const (
	Alone Arity = iota
	OneValue
	ManyValues
)

// ownFlags are the flags of vLLM that only the agent sets or forbids: which model, where it listens, who may call it, how
// much memory it takes, and whether it tells its metrics.
var ownFlags = map[string]Arity{
	"model": OneValue, "served-model-name": ManyValues,
	"host": OneValue, "port": OneValue, "uds": OneValue, "root-path": OneValue,
	"ssl-keyfile": OneValue, "ssl-certfile": OneValue, "ssl-ca-certs": OneValue, "ssl-cert-reqs": OneValue,
	"api-key": ManyValues, "gpu-memory-utilization": OneValue, "kv-cache-memory-bytes": OneValue,
	"disable-log-stats": Alone, "no-disable-log-stats": Alone,
}

// OwnFlag reports whether a flag is one that a user's arguments never set, and what follows it. The name is as vLLM reads
// it: without leading dashes and values, underscores count as dashes, and what only begins one of these names stands for
// it, since Python's parsers take abbreviations.
func OwnFlag(name string) (Arity, bool) {
	name = strings.ReplaceAll(name, "_", "-")
	if arity, ok := ownFlags[name]; ok {
		return arity, true
	}
	for full, arity := range ownFlags {
		if name != "" && strings.HasPrefix(full, name) {
			return arity, true
		}
	}
	return Alone, false
}
