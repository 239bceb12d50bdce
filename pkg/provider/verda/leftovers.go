package verda

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/munhq/gpuscale/pkg/provider"
	"github.com/munhq/gpuscale/pkg/provider/rest"
)

// What outlives an instance: scripts, of which an account can have a hundred (§3), and disks that were detached or are in
// the trash, and bill (§5, §8). All carry the owner tag in their names.

const (
	// scriptPage is the most that a page of scripts holds; maxPages stops a list whose pages never end.
	scriptPage, maxPages = 100, 20
	// tidyEvery is how often leftovers are looked for, and tidyAge how old one is at the least: before that it may belong to
	// a create that is under way.
	tidyEvery, tidyAge = 10 * time.Minute, time.Hour
	// installationLength is the part of an owner tag that all of an installation have in common: "gs-xxxxxxxx-".
	installationLength = 12
)

// scriptName is the tag and when the script was made, since the vendor does not say.
func (p *Provider) scriptName(tag string) string {
	return tag + "." + strconv.FormatInt(p.clock.Now().Unix(), 10)
}

// ofScript is what scriptName put in; false for a name that it did not make.
func ofScript(name string) (tag string, made time.Time, ok bool) {
	tag, at, found := strings.Cut(name, ".")
	seconds, err := strconv.ParseInt(at, 10, 64)
	return tag, time.Unix(seconds, 0), found && err == nil
}

// addScript stores the start-up script. An earlier one by the tag is of an attempt that is over.
func (p *Provider) addScript(ctx context.Context, r provider.CreateRequest) (string, error) {
	old, err := p.scripts(ctx, opCreate)
	if err != nil {
		return "", unsent(err)
	}
	for _, s := range old {
		if tag, _, ok := ofScript(s.Name); ok && tag == r.Tag {
			_ = p.removeScript(ctx, s.ID) // It is in the way of nothing; tidy removes what is left.
		}
	}
	id, err := p.add(ctx, "/scripts", endpointWrites, scriptRequest{Name: p.scriptName(r.Tag), Script: r.Boot.UserData})
	if isFull(err) {
		_ = p.tidy(ctx, r.Tag) // For the next create: without an instance to end nothing else would make room.
	}
	return id, err
}

func (p *Provider) scripts(ctx context.Context, op string) ([]named, error) {
	var all []named
	for page := 1; page <= maxPages; page++ {
		var some []named
		if err := p.read(ctx, op, "/scripts", url.Values{"page": {strconv.Itoa(page)}, "pageSize": {strconv.Itoa(scriptPage)}}, &some); err != nil {
			return nil, err
		}
		all = append(all, some...)
		if len(some) < scriptPage {
			break
		}
	}
	return all, nil
}

func (p *Provider) removeScript(ctx context.Context, id string) error {
	return p.remove(ctx, "/scripts/"+url.PathEscape(id), nil, nil)
}

// removeVolume removes a detached disk for good, in both of the ways in which the vendor's clients say so (§5).
func (p *Provider) removeVolume(ctx context.Context, id string) error {
	return p.remove(ctx, "/volumes/"+url.PathEscape(id), url.Values{"force": {"true"}}, permanent{IsPermanent: true})
}

// remove is nil where there is nothing to remove.
func (p *Provider) remove(ctx context.Context, path string, query url.Values, body any) error {
	_, err := p.call(ctx, opDestroy, rest.Call{Endpoint: endpointWrites, Method: http.MethodDelete, Path: path, Query: query, Body: body, Write: true})
	if provider.KindOf(err) == provider.NotFound {
		return nil
	}
	return err
}

// tidy removes what instances of an installation left that are gone: after a lost answer, a reclaim or a delete that went
// half way. It is due now and then only.
func (p *Provider) tidy(ctx context.Context, tag string) error {
	now := p.clock.Now()
	p.mu.Lock()
	due := strings.HasPrefix(tag, "gs-") && len(tag) >= installationLength && !now.Before(p.swept.Add(tidyEvery))
	if due {
		p.swept = now
	}
	p.mu.Unlock()
	if !due {
		return nil
	}
	installation := tag[:installationLength]
	// What is left over is listed before the instances: one that is made meanwhile is in the second list.
	old, err := p.leftovers(ctx, installation, now)
	if err != nil || len(old) == 0 {
		return err
	}
	all, err := p.instances(ctx, opDestroy)
	if err != nil {
		return err
	}
	for _, w := range all {
		delete(old, w.Hostname)
	}
	for _, removals := range old {
		for _, remove := range removals {
			if err := remove(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// leftovers are, by tag, how what is old enough to be one is removed.
func (p *Provider) leftovers(ctx context.Context, installation string, now time.Time) (map[string][]func(context.Context) error, error) {
	out := map[string][]func(context.Context) error{}
	scripts, err := p.scripts(ctx, opDestroy)
	if err != nil {
		return nil, err
	}
	for _, s := range scripts {
		if tag, made, ok := ofScript(s.Name); ok && strings.HasPrefix(tag, installation) && now.Sub(made) >= tidyAge {
			out[tag] = append(out[tag], func(ctx context.Context) error { return p.removeScript(ctx, s.ID) })
		}
	}
	for _, path := range []string{"/volumes", "/volumes/trash"} {
		var volumes []named
		if err := p.read(ctx, opDestroy, path, nil, &volumes); err != nil {
			return nil, err
		}
		for _, v := range volumes {
			tag, ours := strings.CutSuffix(v.Name, "-os")
			made := moment(v.Created)
			if ours && strings.HasPrefix(tag, installation) && v.Status != "attached" && !made.IsZero() && now.Sub(made) >= tidyAge {
				out[tag] = append(out[tag], func(ctx context.Context) error { return p.removeVolume(ctx, v.ID) })
			}
		}
	}
	return out, nil
}
