package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// asInit is what the agent does as the first process of a container: it runs itself as a child, passes signals on, and
// reaps whatever becomes its own, since orphans of engines go to the first process. It returns the child's exit status.
//
// Reaping and the agent's own waiting for engines are kept in two processes: in one, each would take the other's.
func asInit() int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpuscale-agent:", err)
		return exitFailure
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	child, err := syscall.ForkExec(self, os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpuscale-agent:", err)
		return exitFailure
	}
	go func() {
		for s := range signals {
			if number, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(child, number) // It may have just ended.
			}
		}
	}()
	return reap(child)
}

// reap waits for all children until child has ended.
func reap(child int) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return exitFailure // No children are left, the agent among them.
		case pid == child && status.Signaled():
			return 128 + int(status.Signal())
		case pid == child:
			return status.ExitStatus()
		}
	}
}
