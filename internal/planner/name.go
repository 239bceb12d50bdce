package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// slugLength keeps a claim's name below 63 characters with its hash and any ordinal.
const slugLength = 40

// ClaimName is the name of the claim for the ordinal-th replica of a workload: a DNS label of at most 63 characters.
//
// It depends on nothing but the demand. Two planners that see the same demand and choose different pools, because an
// offer came or went between them, still meet at the same name, and only one claim is made.
func ClaimName(workload string, ordinal int) string {
	sum := sha256.Sum256([]byte(workload))
	return fmt.Sprintf("%s-%s-%d", slug(workload), hex.EncodeToString(sum[:3]), ordinal)
}

// slug is what of a model's name can stand in an object's name.
func slug(key string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(key) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() == slugLength {
			break
		}
	}
	if s := strings.Trim(b.String(), "-"); s != "" {
		return s
	}
	return "model"
}

// names are the claim names that are taken.
type names struct {
	taken map[string]bool
	// from is the ordinal below which all of a workload's are taken.
	from map[string]int
}

func takenNames(s Snapshot) names {
	n := names{taken: map[string]bool{}, from: map[string]int{}}
	for _, c := range s.Claims {
		n.taken[c.Name] = true
	}
	for _, p := range s.Pools {
		for _, r := range p.Status.Reservations {
			n.taken[r.Claim] = true
		}
	}
	return n
}

// next takes the lowest free ordinal of a workload. An ending claim keeps its name until it is gone.
func (n names) next(workload string) string {
	for ordinal := n.from[workload]; ; ordinal++ {
		if name := ClaimName(workload, ordinal); !n.taken[name] {
			n.taken[name], n.from[workload] = true, ordinal+1
			return name
		}
	}
}
