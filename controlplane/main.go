// Command controlplane is a whole Kubernetes control plane in one executable: it acts as etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler or kubectl according to the name it is called by.
//
// The five programs share nearly all of their code, so one link takes a fifth of the time and of the disk that five
// would. It is a module of its own because k8s.io/kubernetes can only be depended on by replacing every staging module
// at once, which the rest of gpuscale must not have to follow.
//
// Called under any other name it takes the program from its first argument:
//
//	controlplane kubectl get pods
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	_ "time/tzdata" // CronJobs name time zones, and the machine this runs on may not have the data.

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl: the auth plugins a kubeconfig may name.
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// programs are the names this executable answers to. Each runs with os.Args[0] being its own name and never sees the
// name controlplane. The commands are built inside the functions, because building one registers global flags and
// feature gates that the others register too.
var programs = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) },
	"kube-controller-manager": func() { os.Exit(cli.Run(controllermanager.NewControllerManagerCommand())) },
	"kube-scheduler":          func() { os.Exit(cli.Run(scheduler.NewSchedulerCommand())) },
	"kubectl":                 runKubectl,
}

const usage = `usage: controlplane PROGRAM [ARGUMENT]...
PROGRAM is one of etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl.
A link to this file by one of those names runs that program.`

func main() {
	run := programs[programName(os.Args[0])]
	if run == nil && len(os.Args) > 1 {
		run = programs[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if run == nil {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	run()
}

// programName is the last element of a path as it was called, without the .exe of a Windows build.
func programName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), ".exe")
}

// runKubectl sets the log verbosity before the command exists, because kubectl already logs while it builds itself
// (plugins, .kuberc), and reports errors the way kubectl does instead of with a usage text.
func runKubectl() {
	// A bad -v is reported by the flag parser a moment later.
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
