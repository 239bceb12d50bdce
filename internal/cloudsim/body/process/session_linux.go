package process

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// ownSession makes the child the leader of a session. Processes that it starts may take process groups of their own, as
// the agent's engines do, and remain in the session; so it stands for the container's process namespace.
func ownSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// killSession kills every process of a session, again and again until a look finds none, since they may fork meanwhile.
func killSession(leader int) {
	for {
		members := session(leader)
		if len(members) == 0 {
			return
		}
		for _, pid := range members {
			_ = syscall.Kill(pid, syscall.SIGKILL) // It has gone, which is what is wanted.
		}
	}
}

func pauseSession(leader int, on bool) {
	signal := syscall.SIGCONT
	if on {
		signal = syscall.SIGSTOP
	}
	for _, pid := range session(leader) {
		_ = syscall.Kill(pid, signal) // A process that has gone cannot be paused.
	}
}

// session is the processes whose session has the given leader, but for those that have ended and wait to be reaped.
func session(leader int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state ppid pgrp session …, where the name may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 3 && fields[3] == strconv.Itoa(leader) && fields[0] != "Z" && fields[0] != "X" {
			out = append(out, pid)
		}
	}
	return out
}
