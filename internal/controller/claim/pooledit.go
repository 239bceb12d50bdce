package claim

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/munhq/gpuscale/api/v1alpha1"
)

// poolEditor joins the edits that are asked for while another is being written into one: a pool's status is as large as
// it has claims, and when a herd starts or ends each of them has something to change. The zero value is ready to use.
type poolEditor struct {
	writing sync.Mutex

	mu      sync.Mutex
	waiting map[string][]poolEdit
}

type poolEdit struct {
	change func(*v1alpha1.GPUNodePool) bool
	done   chan error
}

// edit changes the named pool under its resourceVersion, together with others. All of them fail alike, a conflict among
// the reasons; then none was written. A pool that no longer exists has nothing to change.
func (e *poolEditor) edit(ctx context.Context, reader client.Reader, writer client.Client, name string,
	change func(*v1alpha1.GPUNodePool) bool) error {
	own := poolEdit{change, make(chan error, 1)}
	e.mu.Lock()
	if e.waiting == nil {
		e.waiting = map[string][]poolEdit{}
	}
	e.waiting[name] = append(e.waiting[name], own)
	e.mu.Unlock()

	e.writing.Lock()
	defer e.writing.Unlock()
	e.mu.Lock()
	all := e.waiting[name]
	delete(e.waiting, name)
	e.mu.Unlock()
	if len(all) > 0 { // else whoever wrote last took ours along
		err := write(ctx, reader, writer, name, all)
		for _, one := range all {
			one.done <- err
		}
	}
	return <-own.done
}

func write(ctx context.Context, reader client.Reader, writer client.Client, name string, all []poolEdit) error {
	pool := &v1alpha1.GPUNodePool{}
	if err := reader.Get(ctx, client.ObjectKey{Name: name}, pool); err != nil {
		return client.IgnoreNotFound(err)
	}
	changed := false
	for _, one := range all {
		changed = one.change(pool) || changed
	}
	if !changed {
		return nil
	}
	return writer.Status().Update(ctx, pool)
}
