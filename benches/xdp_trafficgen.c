// Lets the xdp-trafficgen of xdp-tools 1.3 run on newer kernels; preloaded by generators.py.
//
// It gives up where the kernel lacks the tracepoints xdp_redirect_map and xdp_redirect_map_err, which
// only its statistics use, and where BPF_PROG_RUN refuses the 4 bytes that it probes the kernel with.

#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <dlfcn.h>

#define ETHERNET 14

int bpf_object__load(struct bpf_object *object)
{
	static const char *const gone[] = { "tp_xdp_redirect_map", "tp_xdp_redirect_map_err" };
	int (*load)(struct bpf_object *) = dlsym(RTLD_NEXT, __func__);

	for (int i = 0; i < 2; i++) {
		struct bpf_program *program = bpf_object__find_program_by_name(object, gone[i]);

		if (program)
			bpf_program__set_autoload(program, false);
	}
	return load(object);
}

int bpf_prog_test_run_opts(int fd, struct bpf_test_run_opts *options)
{
	static char frame[64];
	int (*run)(int, struct bpf_test_run_opts *) = dlsym(RTLD_NEXT, __func__);

	if (options->data_in && options->data_size_in < ETHERNET) {
		struct xdp_md *context = (struct xdp_md *)options->ctx_in;

		options->data_in = frame;
		options->data_size_in = sizeof(frame);
		if (context)
			context->data_end = sizeof(frame);
	}
	return run(fd, options);
}
