package process_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/munhq/gpuscale/internal/cloudsim/body"
	"github.com/munhq/gpuscale/internal/cloudsim/body/process"
)

// The test binary doubles as the agent: what it does as one is told by this variable.
const role = "GPUSCALE_TEST_BODY_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "serve":
		serve()
	case "off":
		if err := exec.Command("systemctl", "poweroff").Run(); err != nil {
			fmt.Println(err)
		}
		time.Sleep(time.Minute) // It does not come to that.
	case "print":
		fmt.Println(strings.Join(os.Environ(), "\n"))
		os.Exit(3)
	case "chatter":
		for i := range 20000 {
			fmt.Println("line", i)
		}
		os.Exit(0)
	}
}

// serve listens where it is told, starts an engine in a process group of its own, tells its pid, and stays.
func serve() {
	l, err := net.Listen("tcp", os.Getenv("GPUSCALE_LISTEN"))
	if err != nil {
		panic(err)
	}
	engine := exec.Command("/bin/sleep", "1000")
	engine.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := engine.Start(); err != nil {
		panic(err)
	}
	fmt.Println("engine", engine.Process.Pid)
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		_, _ = c.Write([]byte("hello\n"))
		_ = c.Close()
	}
}

func factory(t *testing.T, asRole string) (*process.Factory, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	f, err := process.New(process.Options{Agent: self, VLLM: "/bin/true", Root: root, Env: map[string]string{role: asRole},
		LogBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	return f, root
}

var spec = body.Spec{
	InstanceID: "31000001", Env: map[string]string{"GPUSCALE_BOOT": "e30="}, Port: 9443,
	PortEnv: []string{"VAST_TCP_PORT_9443"}, HostEnv: []string{"PUBLIC_IPADDR"},
	GPU: body.GPU{Name: `NVIDIA "RTX" 4090 <&>`, MemoryMB: 24564, Count: 2, Driver: "570.86.15", CUDA: "12.8", ComputeCap: "8.9"},
}

func wait(t *testing.T, b body.Body) {
	t.Helper()
	select {
	case <-b.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
}

// TestAMachineHasAnAddressAndTurnsItselfOff, and not the computer that runs the test.
func TestAMachineHasAnAddressAndTurnsItselfOff(t *testing.T) {
	f, _ := factory(t, "off")
	machine := spec
	machine.Env, machine.OwnAddress = nil, true
	machine.UserData = "#!/bin/bash\ncat >boot <<'BOOT' || exit 1\ne30=\nBOOT\n"
	b, err := f.Start(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	if host, port := b.Address(); !strings.HasPrefix(host, "127.") || host == "127.0.0.1" || port != 9443 {
		t.Errorf("at %s port %d", host, port)
	}
	wait(t, b)
	if info := b.ExitInfo(); info.Killed || info.Code != -1 {
		t.Errorf("exit %+v", info)
	}
}

func TestKillTakesEverything(t *testing.T) {
	f, root := factory(t, "serve")
	b, err := f.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	host, port := b.Address()
	address := net.JoinHostPort(host, strconv.Itoa(port))
	eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
	logs := b.(body.Logger)
	var engine int
	eventually(t, func() bool {
		_, err := fmt.Sscanf(string(logs.Logs(1)), "engine %d", &engine)
		return err == nil
	})
	b.Kill()
	b.Kill()
	wait(t, b)
	if info := b.ExitInfo(); !info.Killed || info.Code != -1 {
		t.Errorf("exit %+v", info)
	}
	if alive(engine) {
		t.Error("the engine outlived its container")
	}
	if len(logs.Logs(0)) == 0 {
		t.Error("logs went with the process")
	}
	b.(body.Disk).RemoveDisk()
	if left, _ := os.ReadDir(root); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestContextEndsIt(t *testing.T) {
	f, _ := factory(t, "serve")
	ctx, cancel := context.WithCancel(t.Context())
	b, err := f.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	wait(t, b)
}

func TestPauseHoldsTheAddress(t *testing.T) {
	f, _ := factory(t, "serve")
	b, err := f.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { b.Kill(); wait(t, b) }()
	host, port := b.Address()
	greeted := func(within time.Duration) bool {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), within)
		if err != nil {
			return false
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(within))
		n, _ := c.Read(make([]byte, 10))
		return n > 0
	}
	eventually(t, func() bool { return greeted(time.Second) })
	b.(body.Pausable).Pause(true)
	eventually(t, func() bool { return !greeted(100 * time.Millisecond) })
	b.(body.Pausable).Pause(false)
	eventually(t, func() bool { return greeted(time.Second) })
}

func TestEnvironmentIsTheContainers(t *testing.T) {
	t.Setenv("SECRET_OF_THE_PARENT", "x")
	f, root := factory(t, "print")
	b, err := f.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, b)
	if b.ExitInfo().Code != 3 {
		t.Errorf("exit %+v", b.ExitInfo())
	}
	out := string(b.(body.Logger).Logs(0))
	_, port := b.Address()
	for _, want := range []string{fmt.Sprintf("VAST_TCP_PORT_9443=%d", port), "PUBLIC_IPADDR=127.0.0.1",
		fmt.Sprintf("GPUSCALE_LISTEN=127.0.0.1:%d", port), "GPUSCALE_BOOT=e30=",
		"PATH=" + filepath.Join(root, "31000001", "bin") + ":"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if strings.Contains(out, "SECRET_OF_THE_PARENT") {
		t.Error("the parent's environment shows")
	}
}

func TestNoBootDataFailsLikeACommand(t *testing.T) {
	f, _ := factory(t, "serve")
	s := spec
	s.Env = nil
	b, err := f.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, b)
	if info := b.ExitInfo(); info.Code != 1 || info.Killed {
		t.Errorf("exit %+v", info)
	}
	if !strings.Contains(string(b.(body.Logger).Logs(5)), "GPUSCALE_BOOT") {
		t.Error("the log does not say why")
	}
}

func TestLogIsBounded(t *testing.T) {
	f, _ := factory(t, "chatter")
	b, err := f.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, b)
	logs := b.(body.Logger)
	if n := len(logs.Logs(0)); n > 64<<10 || n < 16<<10 {
		t.Errorf("%d bytes kept", n)
	}
	if got := string(logs.Logs(2)); got != "line 19998\nline 19999\n" {
		t.Errorf("tail %q", got)
	}
}

func TestNvidiaSMI(t *testing.T) {
	f, root := factory(t, "print")
	b, err := f.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, b)
	smi := filepath.Join(root, "31000001", "bin", "nvidia-smi")
	run := func(args ...string) string {
		out, err := exec.Command(smi, args...).Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	line := `NVIDIA "RTX" 4090 <&>, 24564, 570.86.15` + "\n"
	if got := run("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"); got != line+line {
		t.Errorf("%q", got)
	}
	if got := run("--query-gpu=memory.total", "--format=csv"); got != "memory.total\n24564 MiB\n24564 MiB\n" {
		t.Errorf("%q", got)
	}
	xml := run("-q", "-x")
	for _, want := range []string{"<product_name>NVIDIA &#34;RTX&#34; 4090 &lt;&amp;&gt;</product_name>",
		"<cuda_version>12.8</cuda_version>", "<attached_gpus>2</attached_gpus>", "<total>24564 MiB</total>"} {
		if !strings.Contains(xml, want) {
			t.Errorf("no %s in\n%s", want, xml)
		}
	}
	// In a loop it goes on until it is killed.
	for _, args := range [][]string{{"-q", "-x", "-l", "1"}, {"-q", "-x", "--loop=1"}} {
		loop := exec.Command(smi, args...)
		loop.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := loop.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		reports := 0
		for lines := bufio.NewScanner(out); reports < 2 && lines.Scan(); {
			if lines.Text() == "</nvidia_smi_log>" {
				reports++
			}
		}
		_ = syscall.Kill(-loop.Process.Pid, syscall.SIGKILL)
		if _ = loop.Wait(); reports != 2 {
			t.Errorf("%v: %d reports", args, reports)
		}
	}
	if exec.Command(smi, "--query-gpu=colour").Run() == nil {
		t.Error("an unknown column passed")
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it never came true")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
